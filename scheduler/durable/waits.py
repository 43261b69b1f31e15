"""The callers that wait for the end of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.durable.asker import Asker
from scheduler.durable.shares import Shares

MOST_WAITS = 10_000
"""The most callers that may wait for the end of a task at once, divided by `Shares`."""


class Waits:
    """Who waits for which task, and for how long."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._loop = asyncio.get_running_loop()
        self._held = Shares()
        self._waiters: dict[int, dict[Callable[[], None], None]] = {}

    def begin(
        self, tenant: str, seq: int, seconds: float, again: Callable[[], None], asker: Asker
    ) -> bool:
        """Calls `again` when a task has ended, or after a time; False if too many wait.

        It is not called once the asker has gone away.
        """
        if not self._held.take(tenant, 1, MOST_WAITS):
            return False
        waiters = self._waiters.setdefault(seq, {})

        def end() -> None:
            timer.cancel()
            del waiters[wake]
            if not waiters:
                del self._waiters[seq]
            self._held.give_back(tenant, 1)
            asker.end(end)

        def wake() -> None:
            end()
            again()

        timer = self._loop.call_later(seconds, wake)
        waiters[wake] = None
        asker.begin(end)
        return True

    def ended(self, seq: int) -> None:
        """A task has ended."""
        for wake in list(self._waiters.get(seq, ())):
            wake()
