"""Looks answers up in the shared Redis, and waits for other boxes that are computing them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from scheduler.config.cache import CacheConfig
from scheduler.daemon.cache.classes import CacheClasses
from scheduler.daemon.cache.counts import Counts
from scheduler.daemon.cache.entries import HEADER_BYTES, BadValue, Kept, unpack
from scheduler.daemon.cache.flights import Flight, Stage
from scheduler.daemon.cache.memory import MemoryTier
from scheduler.daemon.cache.shared import Found, SharedTier
from scheduler.daemon.driver import Driver

_MOST_ASKING = 1024
"""How many flights may wait for Redis at once."""

_WORTH_CLAIMING = 4
"""A run is claimed if it takes at least this many times as long as asking Redis."""

_NS_PER_MS = 1_000_000


class Lookups:
    """Flights that wait for Redis, never for longer than their budget allows.

    Args:
        driver: Provides the time and limits.
        settings: Where Redis is.
        classes: The cache classes.
        memory: Keeps answers from Redis as well.
        counts: The counters.
        on_end: Called once for each flight that was begun and not forgotten, with the answer if
            there is one, and whether another box has just computed it.

    Attributes:
        shared: The shared Redis.
    """

    def __init__(
        self,
        driver: Driver,
        settings: CacheConfig,
        classes: CacheClasses,
        memory: MemoryTier,
        counts: Counts,
        on_end: Callable[[Flight, Kept | None, bool], None],
    ) -> None:
        """Not connected yet."""
        self._timeout_s = settings.timeout_ms / 1e3
        self.shared = SharedTier(settings.url, self._timeout_s, self)
        self._driver = driver
        self._classes = classes
        self._memory = memory
        self._counts = counts
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._asking: dict[Flight, asyncio.TimerHandle] = {}
        self._asking_bytes = 0
        self._waiting: dict[bytes, set[Flight]] = {}
        self._claims: set[bytes] = set()

    # -- beginning and end of a lookup

    def begin(self, flight: Flight) -> bool:
        """Starts a lookup; returns False if it is not possible, or would take too long."""
        full = self._asking_bytes + len(flight.submission.body) > self._driver.core.limits.bytes
        if not self.shared.link.open or full or len(self._asking) >= _MOST_ASKING:
            self._counts.skipped.away += 1
            return False
        may_take_ns = self._spare_ns(flight) // 4
        if self.shared.link.p95_ns() > may_take_ns:
            self._counts.skipped.budget += 1
            return False
        self._wait(flight, Stage.LOOKING, may_take_ns)
        self._read(flight)
        return True

    def forget(self, flight: Flight) -> None:
        """Stops a flight's wait for Redis."""
        timer = self._asking.pop(flight, None)
        if timer is not None:
            timer.cancel()
            self._asking_bytes -= len(flight.submission.body)
        if flight.stage is Stage.WAITING:
            waiting = self._waiting[flight.key]
            waiting.remove(flight)
            if not waiting:
                del self._waiting[flight.key]
            flight.stage = Stage.DUE

    def store(self, flight: Flight, value: bytes) -> None:
        """Writes an answer for all boxes."""
        kind = flight.kind
        self.shared.store(kind.model, flight.key, value, kind.ttl_ms, flight.claimed)
        self._unclaim(flight)

    def release(self, flight: Flight) -> None:
        """Gives a flight's claim back: other boxes need not wait for this one."""
        if flight.claimed:
            self.shared.release(flight.kind.model, flight.key)
            self._unclaim(flight)

    def _unclaim(self, flight: Flight) -> None:
        if flight.claimed:
            flight.claimed = False
            self._claims.discard(flight.key)

    def end_all(self) -> None:
        """Ends all lookups; their flights go on without an answer from Redis."""
        for flight in list(self._asking):
            self._finish(flight, None)

    def _finish(self, flight: Flight, kept: Kept | None, elsewhere: bool = False) -> None:
        self.forget(flight)
        self._on_end(flight, kept, elsewhere)

    def _wait(self, flight: Flight, stage: Stage, for_ns: int) -> None:
        self.forget(flight)
        self._asking_bytes += len(flight.submission.body)
        flight.stage = stage
        for_s = max(0, for_ns) / 1e9
        if stage is Stage.WAITING:
            self._waiting.setdefault(flight.key, set()).add(flight)
        else:
            for_s = min(for_s, self._timeout_s)
        self._asking[flight] = self._loop.call_later(for_s, self._give_up, flight)

    def _give_up(self, flight: Flight) -> None:
        self._counts.gave_up += 1
        self._finish(flight, None)

    def _spare_ns(self, flight: Flight) -> int:
        """The budget left once the request has run."""
        service_ns = self._classes.service_ns(flight.kind) or 0
        return flight.submission.deadline_ns - self._driver.clock_ns() - service_ns

    # -- commands and replies

    def _read(self, flight: Flight) -> None:
        kind = flight.kind
        then = partial(self._on_found, flight, flight.stage)
        self.shared.look_up(kind.model, flight.key, kind.most_bytes + HEADER_BYTES, then)

    def _claim(self, flight: Flight) -> bool:
        """Claims the request, unless another box has; returns False if that is not worthwhile.

        A request that another box forwarded makes no claim: that box probably has the claim.
        """
        p95_ns, spare_ns = self.shared.link.p95_ns(), self._spare_ns(flight)
        service_ns = self._classes.service_ns(flight.kind) or 0
        worth = p95_ns <= spare_ns // 4 and service_ns >= _WORTH_CLAIMING * p95_ns
        if flight.submission.kind.local or not worth:
            return False
        if flight.key in self._claims:  # held by a flight with more time, too late for this one
            return False
        self._wait(flight, Stage.CLAIMING, spare_ns // 4)
        left_ms = (flight.submission.deadline_ns - self._driver.clock_ns()) // _NS_PER_MS
        then = partial(self._on_found, flight, flight.stage)
        most_bytes = flight.kind.most_bytes + HEADER_BYTES
        self.shared.claim(flight.kind.model, flight.key, most_bytes, left_ms, then)
        return True

    def _on_found(self, flight: Flight, asked: Stage, found: Found | None) -> None:
        kept = self._checked(flight, found)
        claimed = found is not None and found.claimed
        if flight.stage is not asked or flight not in self._asking:
            # Too late for this flight. The answer is kept for the next; a claim is not needed.
            if claimed:
                self.shared.release(flight.kind.model, flight.key)
            return
        if claimed:
            flight.claimed = True
            self._claims.add(flight.key)
        if kept is not None:
            self._finish(flight, kept, asked is Stage.READING_AGAIN)
        elif found is not None and asked is Stage.LOOKING and self._claim(flight):
            return
        elif asked is Stage.CLAIMING and claimed is False and self.shared.link.tracks:
            # Redis notifies when the other box has written an answer, or gives its claim back.
            wait_ns = self._spare_ns(flight) // 2
            if found is not None and found.claim_ms is not None:
                wait_ns = min(wait_ns, found.claim_ms * _NS_PER_MS)
            self._wait(flight, Stage.WAITING, wait_ns)
        else:
            self._finish(flight, None)

    def _checked(self, flight: Flight, found: Found | None) -> Kept | None:
        """The valid answer in a reply, also put in memory for as long as Redis keeps it."""
        if found is None or found.value is None:
            return None
        kind = flight.kind
        try:
            if len(found.value) > kind.most_bytes + HEADER_BYTES:
                raise BadValue("it is too large")
            kept = unpack(flight.key, found.value, kind.outputs, kind.variants)
        except BadValue:
            self._counts.invalid += 1
            return None
        ttl_ns = kind.ttl_ns if found.ttl_ms is None else found.ttl_ms * _NS_PER_MS
        now_ns = self._driver.clock_ns()
        self._memory.put(flight.key, kept, now_ns + min(ttl_ns, kind.ttl_ns), now_ns)
        return kept

    # -- changes in Redis

    def on_lost(self) -> None:
        """Ends the waits for other boxes: nobody would notify this one of their answers."""
        for flight in [flight for waiting in self._waiting.values() for flight in waiting]:
            self._finish(flight, None)

    def on_changed(self, keys: Iterable[bytes] | None) -> None:
        """Others have written or removed these answers; None means possibly all of them."""
        if keys is None:
            self._memory.clear()
            return
        for key in keys:
            self._counts.invalidated += 1
            self._memory.drop(key)
            self._read_again(key)

    def on_released(self, keys: Iterable[bytes]) -> None:
        """Other boxes have given claims back, with or without an answer."""
        for key in keys:
            self._read_again(key)

    def _read_again(self, key: bytes) -> None:
        for flight in list(self._waiting.get(key, ())):
            self._wait(flight, Stage.READING_AGAIN, self._spare_ns(flight) // 4)
            self._read(flight)

    # -- inspection

    def status(self) -> dict[str, Any]:
        """The state of Redis and the link to it."""
        return {
            **self.shared.link.status(),
            "invalidation": self.shared.link.tracks,
            "refused": self.shared.refused,
            "refusal": self.shared.refusal,
            "asking": len(self._asking),
        }
