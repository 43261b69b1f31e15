"""Live replay: requests sent to a running daemon when they are due, from one process or several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import chain, islice

from replay.live.closed_loop import ClosedLoop
from replay.live.endings import PROGRESS_S, LiveEnding, LiveTally, OnEnd, OnProgress
from replay.live.inputs import MakeInputs, random_inputs
from replay.live.player import Player, run_precisely
from replay.live.processes import Crew
from replay.simulator import Arrival
from replay.workloads import Clients
from scheduler import AsyncClient

_LEAD_NS = 20_000_000


def play_live(
    url: str | None,
    arrivals: Iterable[Arrival],
    on_end: OnEnd = lambda _: None,
    *,
    make_inputs: MakeInputs = random_inputs,
    processes: int = 1,
    progress: OnProgress = lambda _: None,
    tally: LiveTally | None = None,
) -> LiveTally:
    """Sends requests to a daemon when they are due, and waits for their endings.

    Nothing is kept of a request that has ended, and nothing is read far ahead, so a schedule may be
    of any length.

    Args:
        url: The daemon's address; None as in `AsyncClient`.
        arrivals: The requests, in order of time.
        on_end: Called for each ending, in order of time.
        make_inputs: Makes the inputs of requests. With several processes it is pickled.
        processes: Number of sending processes; of N, each takes every N-th request.
        progress: Called with the counts so far, about every `PROGRESS_S`.
        tally: The counts to add to, for a caller that needs those of a run that breaks off.

    Returns:
        The counts.

    Raises:
        LaxityError: The daemon can't be reached.
        LiveError: A sending process failed.
        ValueError: The number of processes is below 1, or above 1 for closed-loop clients.
    """
    if processes < 1:
        raise ValueError(f"processes is an integer from 1, not {processes!r}")
    if processes > 1 and isinstance(arrivals, Clients):
        raise ValueError("clients that wait for their answers are played by one process: --jobs 1")
    tally = tally or LiveTally()
    if processes > 1:
        Crew(url, make_inputs, processes, tally).play(arrivals, on_end, progress)
    else:
        run_precisely(_play_here(url, arrivals, on_end, make_inputs, progress, tally))
    return tally


async def _play_here(
    url: str | None,
    arrivals: Iterable[Arrival],
    on_end: OnEnd,
    make_inputs: MakeInputs,
    progress: OnProgress,
    tally: LiveTally,
) -> None:
    loop: ClosedLoop | None = None

    def note(ending: LiveEnding) -> None:
        tally.sent = player.sent
        tally.add(ending)
        on_end(ending)
        if loop is not None:
            loop.answered(ending.at_ns)

    async with AsyncClient(url) as client:
        inputs = make_inputs(await client.models())
        if not isinstance(arrivals, Clients):
            # Finding the first request may take long, e.g. in the middle of a file; time begins
            # after it.
            arrivals = iter(arrivals)
            arrivals = chain(list(islice(arrivals, 1)), arrivals)
        player = Player(client, inputs, note, time.monotonic_ns() + _LEAD_NS)
        loop = ClosedLoop(arrivals, player.now_ns) if isinstance(arrivals, Clients) else None

        async def report() -> None:
            while True:
                await asyncio.sleep(PROGRESS_S)
                tally.sent = player.sent
                progress(tally)

        reporting = asyncio.ensure_future(report())
        try:
            await player.play(enumerate(arrivals) if loop is None else loop.numbered())
        finally:
            reporting.cancel()
        tally.sent = player.sent
    progress(tally)
