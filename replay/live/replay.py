"""Live replay: requests sent to a running daemon on a schedule, whatever comes back.

Latency counts from when a request was due, not from when it was sent, and its deadline too: a
generator that falls behind can't make the box look good (no coordinated omission). How far it
did fall behind is measured and said.
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
"""A generator whose 99th percentile is later than this has changed the load that it should give."""

TOLERATED_LAG_SHARE = 0.05
"""The same as a share of the deadline."""

PROGRESS_S = 0.5

ANSWERED = (Outcome.COMPLETED.value, Outcome.LATE.value)
"""The outcomes with a result."""

_LEAD_NS = 20_000_000
_SHORTEST_BUDGET_NS = 1_000


@dataclass(frozen=True, slots=True)
class LiveEnding:
    """How a request of a live replay ended. Times are nanoseconds from the start.

    Attributes:
        number: Its place in the schedule, from 0.
        arrival: What was due, and when.
        sent_ns: When it was sent.
        outcome: One of `Outcome`'s values, or the code of an error, such as `invalid_input`; None
            where nothing came back.
        at_ns: When that was known here.
        target: Where it ran; None where there is no result.
        variant: What ran; None where there is no result.
        reason: Why there is no result, for people.
        held_ns: How long the box says that it had the request; None where there is no result.
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
        """When it was due."""
        return self.arrival.at_ns

    @property
    def latency_ns(self) -> int:
        """From when it was due to its end."""
        return self.at_ns - self.arrival.at_ns

    @property
    def lag_ns(self) -> int:
        """By how much the generator was late."""
        return max(0, self.sent_ns - self.arrival.at_ns)

    @property
    def on_time(self) -> bool:
        """Whether the caller had a result within the budget."""
        return self.outcome == Outcome.COMPLETED.value and self.latency_ns <= self.arrival.budget_ns


def simulated(ending: Ending) -> LiveEnding:
    """A simulation's ending in the same words, to be compared with those of a live replay."""
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
    """Quantiles of numbers from 0, to 2 percent, in little memory however many there are."""

    _STEP = math.log(1.02)

    def __init__(self) -> None:
        """Has seen nothing."""
        self.count = 0
        self._zeros = 0
        self._counts: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Takes in one more."""
        self.count += 1
        if value > 0:
            self._counts[math.ceil(math.log(value) / self._STEP)] += 1
        else:
            self._zeros += 1

    def quantile(self, quantile: float) -> float | None:
        """The value that a share `quantile` does not exceed; None of nothing."""
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
    """What came of a live replay, so far.

    Attributes:
        sent: Requests that went out.
        outcomes: How those that ended did; `none` where nothing came back.
        on_time: Those with a result within their budget.
        elapsed_ns: Of the schedule.
        latency_ns: Of the results.
        lag_ns: How late the generator was.
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
        """How many have ended."""
        return self.outcomes.total()

    def add(self, ending: LiveEnding) -> None:
        """Counts one more."""
        self.outcomes[ending.outcome or "none"] += 1
        self.on_time += ending.on_time
        if ending.outcome in ANSWERED:
            self.latency_ns.add(ending.latency_ns)
        self.lag_ns.add(ending.lag_ns)
        self.lag_share.add(ending.lag_ns / max(1, ending.arrival.budget_ns))

    def warning(self) -> str | None:
        """What to say of a generator that was late itself; None if it kept to its schedule."""
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
        client: Connected.
        inputs: Makes what to send.
        on_end: Hears of each end, in the order in which they come.
        start_ns: When the schedule's time 0 is, on the clock.
        settle_s: As in `SETTLE_S`.
        clock_ns: The monotonic clock.

    Attributes:
        sent: How many went out.
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
        """Has sent nothing yet."""
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
        """Sends each when it is due, and waits until all have ended or are given up.

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
            self._on_end = lambda _: None  # what is still out was cut off, and has no end
            raise
        finally:
            await settle(self._out, 0)
            await asyncio.sleep(0)  # The ends of what was given up are still to be noted.

    def _send(self, number: int, arrival: Arrival) -> None:
        due_ns, budget_ns = arrival.at_ns, arrival.budget_ns
        self._last_deadline_ns = max(self._last_deadline_ns, due_ns + budget_ns)
        self.sent += 1
        sent_ns = self.now_ns()
        try:
            # The time that the generator is late is lost to the box.
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
    """Sends requests to a daemon when they are due and waits for their ends.

    Nothing is kept of a request that has ended, and nothing is read far ahead, so a schedule may
    be of any length.

    Args:
        url: Of the daemon; None as in `AsyncClient`.
        arrivals: The requests, in order of time.
        on_end: Hears of each end, in order of time.
        token: As in `AsyncClient`.
        make_inputs: Makes what to send. With several processes it is pickled.
        processes: How many send; with N of them each takes every N-th request.
        settle_s: As in `SETTLE_S`.
        progress: Told how far it is, about every `PROGRESS_S`.

    Raises:
        LaxityError: The daemon can't be reached.
        LiveError: A process that sends has failed.
        ValueError: The number of processes is not from 1, or more than 1 for clients that wait.
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
            # To find the first one may take long, as in the midst of a file; then time begins.
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

    Loops that wait with epoll, uvloop's among them, round up to the next millisecond, which is
    as much as a generator may be late.
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
