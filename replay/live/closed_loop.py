"""The requests of clients that wait for their answers, each when it is due on a real clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from replay.simulator import Arrival
from replay.workloads import Clients


class ClosedLoop:
    """Asks for clients that wait for their answers, on a real clock.

    Args:
        clients: The clients.
        now_ns: The clock.
    """

    def __init__(self, clients: Clients, now_ns: Callable[[], int]) -> None:
        """Begins before the first request."""
        self._clients = clients
        self._now_ns = now_ns
        self._heard = asyncio.Event()

    def answered(self, at_ns: int) -> None:
        """Records that a request has ended."""
        self._clients.answered(at_ns)
        self._heard.set()

    async def numbered(self) -> AsyncIterator[tuple[int, Arrival]]:
        """Each request when it is due, until no client will ask any more."""
        number = 0
        loop = asyncio.get_running_loop()
        while (due_ns := self._clients.next_ns()) is not None or self._clients.out:
            left_s = None if due_ns is None else (due_ns - self._now_ns()) / 1e9
            if left_s is not None and left_s <= 0:
                yield number, next(self._clients)
                number += 1
                continue
            # A client that is answered meanwhile may be due before the one that is next now.
            timer = None if left_s is None else loop.call_later(left_s, self._heard.set)
            await self._heard.wait()
            self._heard.clear()
            if timer is not None:
                timer.cancel()
