"""One timer for the deadlines of everything in flight."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Container

_TIDY_FROM = 256


class Deadlines:
    """Calls back at each deadline whose call is still live.

    It is a heap with lazy deletion: entries of ended calls are skipped when they reach the top, and
    removed together when the heap has doubled in size.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        live: Container[int],
        on_due: Callable[[int], None],
    ) -> None:
        """`live` says which ids still matter; `on_due` gets each id at its deadline."""
        self._loop = loop
        self._live = live
        self._on_due = on_due
        self._heap: list[tuple[int, int]] = []
        self._tidy_at = _TIDY_FROM
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, deadline_ns: int, call_id: int) -> None:
        """Watches a deadline on the monotonic clock."""
        heap = self._heap
        heapq.heappush(heap, (deadline_ns, call_id))
        if len(heap) > self._tidy_at:
            self._tidy()
        if self._timer is None or deadline_ns < self._timer_ns:
            self._arm(deadline_ns)

    def close(self) -> None:
        """Stops watching."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tidy(self) -> None:
        self._heap = [entry for entry in self._heap if entry[1] in self._live]
        heapq.heapify(self._heap)
        self._tidy_at = max(_TIDY_FROM, 2 * len(self._heap))

    def _arm(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # uvloop rounds delays to whole milliseconds, so round up lest the timer fire too early.
        delay_ms = math.ceil(max(0, deadline_ns - time.monotonic_ns()) / 1e6)
        self._timer = self._loop.call_later(delay_ms / 1e3, self._fire)
        self._timer_ns = deadline_ns

    def _fire(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        while heap := self._heap:  # each time: `on_due` may add so many that it is tidied
            deadline_ns, call_id = heap[0]
            if call_id not in self._live:
                heapq.heappop(heap)
            elif deadline_ns <= now_ns:
                heapq.heappop(heap)
                self._on_due(call_id)
            else:
                self._arm(deadline_ns)
                return
