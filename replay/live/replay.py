"""Live replay: requests sent to a running daemon on a schedule, whatever comes back.

Latency and deadline count from when a request was due, not from when it was sent. A generator that
falls behind therefore can't make the box look good (no coordinated omission). Its lag is measured
and reported.
"""

from __future__ import annotations

import asyncio
import gc
import math
import selectors
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from replay.live.closed_loop import Turns
from replay.live.inputs import Inputs, MakeInputs, random_inputs
from replay.live.open_loop import SETTLE_S, in_time, outcome_of, outcome_of_error, settle
from replay.simulator import Arrival, Ending
from replay.workloads import Clients
from scheduler import AsyncClient, LaxityError
from scheduler.core.outcomes import Outcome

T = TypeVar("T")

TOLERATED_LAG_NS = 1_000_000
"""A generator whose 99th percentile of lag is above this has changed the load it should produce."""

TOLERATED_LAG_SHARE = 0.05
"""The same limit as a share of the deadline."""

PROGRESS_S = 0.5

ANSWERED = (Outcome.COMPLETED.value, Outcome.LATE.value)
"""The outcomes that carry a result."""

_LEAD_NS = 20_000_000
_SHORTEST_BUDGET_NS = 1_000


@dataclass(frozen=True, slots=True)
class LiveEnding:
    """How a request of a live replay ended. Times are nanoseconds from the start.

    Attributes:
        number: Its place in the schedule, from 0.
        arrival: The request that was due, and when.
        sent_ns: When it was sent.
        outcome: One of `Outcome`'s values, or the code of an error, such as `invalid_input`; None
            if nothing came back.
        at_ns: When the ending was known here.
        target: Where it ran; None without a result.
        variant: The variant that ran; None without a result.
        reason: Why there is no result, in words.
        held_ns: How long the box says it held the request; None without a result.
    """

    number: int
    arrival: Arrival
    sent_ns: int
    outcome: str | None
    at_ns: int
    target: str | None = None
    variant: str | None = None
    reason: str = ""
    held_ns: int | None = None

    @property
    def intended_ns(self) -> int:
        """When the request was due."""
        return self.arrival.at_ns

    @property
    def latency_ns(self) -> int:
        """Time from when the request was due to its end."""
        return self.at_ns - self.arrival.at_ns

    @property
    def lag_ns(self) -> int:
        """How late the generator sent it."""
        return max(0, self.sent_ns - self.arrival.at_ns)

    @property
    def on_time(self) -> bool:
        """Whether the caller had a result within the budget."""
        return self.outcome == Outcome.COMPLETED.value and self.latency_ns <= self.arrival.budget_ns


def simulated(ending: Ending) -> LiveEnding:
    """A simulation's ending in the form of a live one, for comparison."""
    arrival, finish = ending.arrival, ending.finish
    return LiveEnding(
        finish.request_id - 1,
        arrival,
        arrival.at_ns,
        finish.outcome.value,
        ending.at_ns,
        reason="" if finish.run_id is not None else finish.reason,
    )


class Spread:
    """Quantiles of numbers from 0, to within 2 percent, in little memory for any count."""

    _STEP = math.log(1.02)

    def __init__(self) -> None:
        """Begins empty."""
        self.count = 0
        self._zeros = 0
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Adds a number."""
        self.count += 1
        if value > 0:
            self._counts[math.ceil(math.log(value) / self._STEP)] += 1
        else:
            self._zeros += 1

    def quantile(self, quantile: float) -> float | None:
        """The value that a share `quantile` does not exceed; None if there are no numbers."""
        if not self.count:
            return None
        left = math.ceil(quantile * self.count) - self._zeros
        if left <= 0:
            return 0.0
        steps = iter(sorted(self._counts))
        step = next(steps)
        while (left := left - self._counts[step]) > 0:
            step = next(steps)
        return math.exp(step * self._STEP)


@dataclass(slots=True)
class LiveTally:
    """The counts of a live replay so far.

    Attributes:
        sent: Requests sent.
        outcomes: Requests per outcome; `none` if nothing came back.
        on_time: Requests with a result within their budget.
        elapsed_ns: Time since the start of the schedule.
        latency_ns: Latencies of the results.
        lag_ns: How late the generator sent each request.
        lag_share: The same as a share of each request's budget.
    """

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    on_time: int = 0
    elapsed_ns: int = 0
    latency_ns: Spread = field(default_factory=Spread)
    lag_ns: Spread = field(default_factory=Spread)
    lag_share: Spread = field(default_factory=Spread)

    @property
    def ended(self) -> int:
        """How many requests have ended."""
        return self.outcomes.total()

    def add(self, ending: LiveEnding) -> None:
        """Counts an ending."""
        self.outcomes[ending.outcome or "none"] += 1
        self.on_time += ending.on_time
        if ending.outcome in ANSWERED:
            self.latency_ns.add(ending.latency_ns)
        self.lag_ns.add(ending.lag_ns)
        self.lag_share.add(ending.lag_ns / max(1, ending.arrival.budget_ns))

    def warning(self) -> str | None:
        """A warning if the generator fell behind its schedule; None if it kept to it."""
        lag_ns, share = self.lag_ns.quantile(0.99), self.lag_share.quantile(0.99)
        if lag_ns is None or share is None:
            return None
        if lag_ns <= TOLERATED_LAG_NS and share <= TOLERATED_LAG_SHARE:
            return None
        return (
            f"the load generator was late itself: 1 % of its requests went out {lag_ns / 1e6:.1f} "
            f"ms or more after their time ({share:.0%} of their deadline), and that is part of "
            "their latency; give it more processes or a core of its own"
        )


OnEnd = Callable[[LiveEnding], None]
OnProgress = Callable[[LiveTally], None]


class Player:
    """Sends requests over one client.

    Args:
        client: A connected client.
        inputs: Makes the inputs of requests.
        on_end: Called for each ending, in the order in which they come.
        start_ns: When time 0 of the schedule is, on the clock.
        settle_s: As in `SETTLE_S`.
        clock_ns: The monotonic clock.

    Attributes:
        sent: How many requests were sent.
    """

    def __init__(
        self,
        client: AsyncClient,
        inputs: Inputs,
        on_end: OnEnd,
        start_ns: int,
        settle_s: float = SETTLE_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begins before the first request."""
        self.sent = 0
        self._client = client
        self._inputs = inputs
        self._on_end = on_end
        self._start_ns = start_ns
        self._settle_s = settle_s
        self._clock_ns = clock_ns
        self._out: set[asyncio.Future[Any]] = set()
        self._last_deadline_ns = 0

    def now_ns(self) -> int:
        """Nanoseconds from the start."""
        return self._clock_ns() - self._start_ns

    async def play(
        self, numbered: Iterable[tuple[int, Arrival]] | AsyncIterable[tuple[int, Arrival]]
    ) -> None:
        """Sends each request when it is due; waits until all have ended or are given up.

        Args:
            numbered: The requests in order of time, with their places in the schedule.
        """
        try:
            async for number, arrival in in_time(
                numbered, lambda item: item[1].at_ns / 1e9, lambda: self.now_ns() / 1e9
            ):
                self._send(number, arrival)
            left_s = (self._last_deadline_ns - self.now_ns()) / 1e9 + self._settle_s
            await settle(self._out, left_s)
        except BaseException:
            self._on_end = lambda _: None  # requests still out were cut off, and have no ending
            raise
        finally:
            await settle(self._out, 0)
            await asyncio.sleep(0)  # lets the endings of cancelled requests be noted

    def _send(self, number: int, arrival: Arrival) -> None:
        due_ns, budget_ns = arrival.at_ns, arrival.budget_ns
        self._last_deadline_ns = max(self._last_deadline_ns, due_ns + budget_ns)
        self.sent += 1
        sent_ns = self.now_ns()
        try:
            # The box loses the time by which the generator is late.
            left_ns = max(_SHORTEST_BUDGET_NS, due_ns + budget_ns - max(sent_ns, due_ns))
            future = self._client.submit(
                arrival.kind.model,
                self._inputs(arrival.kind),
                deadline_ms=left_ns / 1e6,
                variant=arrival.kind.variant,
                priority=arrival.priority,
                weight=arrival.weight,
                accept_late=arrival.accept_late,
            )
        except LaxityError as error:
            outcome, at_ns = outcome_of_error(error), self.now_ns()
            self._on_end(LiveEnding(number, arrival, sent_ns, outcome, at_ns, reason=str(error)))
            return

        def note(ended: asyncio.Future[Any]) -> None:
            self._out.discard(ended)
            outcome, reason = outcome_of(ended)
            at_ns = self.now_ns()
            ran: tuple[Any, ...] = (None, None, reason)
            if outcome in ANSWERED:
                found = ended.result()
                ran = found.target, found.variant, reason, found.timing.total_ns
            self._on_end(LiveEnding(number, arrival, sent_ns, outcome, at_ns, *ran))

        self._out.add(future)
        future.add_done_callback(note)


def play_live(
    url: str | None,
    arrivals: Iterable[Arrival],
    on_end: OnEnd = lambda _: None,
    *,
    token: str | None = None,
    make_inputs: MakeInputs = random_inputs,
    processes: int = 1,
    settle_s: float = SETTLE_S,
    progress: OnProgress = lambda _: None,
) -> LiveTally:
    """Sends requests to a daemon when they are due, and waits for their endings.

    Nothing is kept of a request that has ended, and nothing is read far ahead, so a schedule may be
    of any length.

    Args:
        url: The daemon's address; None as in `AsyncClient`.
        arrivals: The requests, in order of time.
        on_end: Called for each ending, in order of time.
        token: As in `AsyncClient`.
        make_inputs: Makes the inputs of requests. With several processes it is pickled.
        processes: Number of sending processes; of N, each takes every N-th request.
        settle_s: As in `SETTLE_S`.
        progress: Called with the counts so far, about every `PROGRESS_S`.

    Raises:
        LaxityError: The daemon can't be reached.
        LiveError: A sending process failed.
        ValueError: The number of processes is below 1, or above 1 for closed-loop clients.
    """
    if processes < 1:
        raise ValueError(f"processes is an integer from 1, not {processes!r}")
    if processes > 1 and isinstance(arrivals, Clients):
        raise ValueError("clients that wait for their answers are played by one process: --jobs 1")
    if processes > 1:
        from replay.live.processes import Crew

        return Crew(url, token, make_inputs, processes, settle_s).play(arrivals, on_end, progress)
    return run_precisely(_play_here(url, arrivals, on_end, token, make_inputs, settle_s, progress))


async def _play_here(
    url: str | None,
    arrivals: Iterable[Arrival],
    on_end: OnEnd,
    token: str | None,
    make_inputs: MakeInputs,
    settle_s: float,
    progress: OnProgress,
) -> LiveTally:
    tally = LiveTally()

    turns: Turns | None = None

    def note(ending: LiveEnding) -> None:
        tally.add(ending)
        on_end(ending)
        if turns is not None:
            turns.answered(ending.at_ns)

    async with AsyncClient(url, token=token) as client:
        inputs = make_inputs(await client.models())
        if not isinstance(arrivals, Clients):
            # Finding the first request may take long, e.g. in the middle of a file; time begins
            # after it.
            arrivals = iter(arrivals)
            arrivals = chain(list(islice(arrivals, 1)), arrivals)
        player = Player(client, inputs, note, time.monotonic_ns() + _LEAD_NS, settle_s)
        turns = Turns(arrivals, player.now_ns) if isinstance(arrivals, Clients) else None

        async def report() -> None:
            while True:
                await asyncio.sleep(PROGRESS_S)
                tally.sent, tally.elapsed_ns = player.sent, player.now_ns()
                progress(tally)

        reporting = asyncio.ensure_future(report())
        try:
            await player.play(enumerate(arrivals) if turns is None else turns.numbered())
        finally:
            reporting.cancel()
        tally.sent, tally.elapsed_ns = player.sent, player.now_ns()
    progress(tally)
    return tally


def run_precisely(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on an event loop whose timers are as fine as the system's.

    Loops that wait with epoll, uvloop's among them, round up to the next millisecond. That alone is
    as late as a generator may be.
    """
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    gc.collect()
    gc.freeze()
    try:
        return loop.run_until_complete(work)
    finally:
        gc.unfreeze()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
