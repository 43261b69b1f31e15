"""Sends requests to a running daemon on a schedule, whatever comes back."""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from replay.live.endings import LiveEnding, OnEnd
from replay.live.inputs import Inputs
from replay.live.open_loop import SETTLE_S, in_time, outcome_of, outcome_of_error, settle
from replay.results import ANSWERED
from replay.simulator import Arrival
from scheduler import AsyncClient, LaxityError

T = TypeVar("T")

_SHORTEST_BUDGET_NS = 1_000


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
