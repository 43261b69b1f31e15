"""Paces work that holds the event loop for long, so that other tenants get time in between."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scheduler.tenants import UNCOUNTED, Tenant

LONG_BYTES = 64 * 1024
"""JSON from this size on is paced; parsing this much takes about 3 ms."""

REST = 3.0
"""After a piece of work, its tenant rests for so many times as long as the piece took."""

COMPANY_S = 1.0
"""A tenant that sent a request within this time counts as active."""


class Pace:
    """Runs each tenant's long work piece by piece, with rests while other tenants are active.

    Args:
        clock_s: The monotonic clock, in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Starts with no active tenants."""
        self._clock_s = clock_s
        self._asked_s: dict[str, float] = {}
        self._rested_s: dict[str, float] = {}
        self._each: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def note(self, tenant: Tenant) -> None:
        """Notes that a tenant is active."""
        self._asked_s[tenant.name] = self._clock_s()

    def holds(self, tenant: Tenant, json_bytes: int) -> bool:
        """Whether JSON of that size must wait for a turn."""
        return json_bytes >= LONG_BYTES and tenant.name not in UNCOUNTED

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[int]:
        """A context in which to do one piece of work, without awaiting anything.

        Yields how long the piece had to wait for its turn, in nanoseconds.
        """
        name, asked_s = tenant.name, self._clock_s()
        async with self._each[name]:
            left_s = self._rested_s.get(name, 0.0) - self._clock_s()
            while left_s > 0 and self._has_company(name):
                await asyncio.sleep(min(left_s, COMPANY_S))
                left_s = self._rested_s[name] - self._clock_s()
            began_s = self._clock_s()
            try:
                yield int((began_s - asked_s) * 1e9)
            finally:
                ended_s = self._clock_s()
                self._rested_s[name] = ended_s + REST * (ended_s - began_s)

    def _has_company(self, name: str) -> bool:
        since_s = self._clock_s() - COMPANY_S
        return any(at > since_s for other, at in self._asked_s.items() if other != name)
