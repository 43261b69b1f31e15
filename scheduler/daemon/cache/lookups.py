"""Asking the shared Redis for an answer, and waiting for another box that is working on it."""

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
"""How many questions may wait for Redis at once."""

_WORTH_CLAIMING = 4
"""A run is claimed where it takes so many times as long as asking Redis does."""

_NS_PER_MS = 1_000_000


class Lookups:
    """Questions that wait for Redis; never for longer than their budget has room for.

    Args:
        driver: Tells the time, limits and predicted durations.
        settings: Where Redis is.
        classes: What is known of the models.
        memory: Where answers from Redis are kept, too.
        counts: Where is counted what happens.
        on_end: Told once, for each flight that was begun and not forgotten, the answer if there
            is one, and whether another box has worked it out just now.

    Attributes:
        shared: The Redis.
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
        """Nothing is asked, and there is no connection yet."""
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

    # -- beginning and end of a question

    def begin(self, flight: Flight) -> bool:
        """Asks for the answer; False where that is not possible, or would take too long."""
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
        """Nobody waits for Redis any more."""
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
        ttl_ms = max(1, kind.ttl_ns // _NS_PER_MS)
        self.shared.store(kind.model, flight.key, value, ttl_ms, flight.claimed)
        self._unclaim(flight)

    def release(self, flight: Flight) -> None:
        """Says that other boxes need not wait for this one."""
        if flight.claimed:
            self.shared.release(flight.kind.model, flight.key)
            self._unclaim(flight)

    def _unclaim(self, flight: Flight) -> None:
        if flight.claimed:
            flight.claimed = False
            self._claims.discard(flight.key)

    def end_all(self) -> None:
        """Lets all that wait for Redis go on without."""
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
        """What is left of the budget once the request has run."""
        service_ns = self._classes.service_ns(flight.kind) or 0
        return flight.submission.deadline_ns - self._driver.clock_ns() - service_ns

    # -- what is asked, and what comes back

    def _read(self, flight: Flight) -> None:
        kind = flight.kind
        then = partial(self._on_found, flight, flight.stage)
        self.shared.look_up(kind.model, flight.key, kind.most_bytes + HEADER_BYTES, then)

    def _claim(self, flight: Flight) -> bool:
        """Asks whether another box runs the same; False where a run takes too little for that.

        Nor does what came from another box ask: it is likely that very box that has the claim.
        """
        p95_ns, spare_ns = self.shared.link.p95_ns(), self._spare_ns(flight)
        service_ns = self._classes.service_ns(flight.kind) or 0
        worth = p95_ns <= spare_ns // 4 and service_ns >= _WORTH_CLAIMING * p95_ns
        if flight.submission.kind.local or not worth:
            return False
        if flight.key in self._claims:  # of one with more time, for which it can't wait
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
            # It took too long. Those who ask next have the answer; nobody need wait for this box.
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
            # Redis will tell when the other box has written an answer, or gives its claim back.
            wait_ns = self._spare_ns(flight) // 2
            if found is not None and found.claim_ms is not None:
                wait_ns = min(wait_ns, found.claim_ms * _NS_PER_MS)
            self._wait(flight, Stage.WAITING, wait_ns)
        else:
            self._finish(flight, None)

    def _checked(self, flight: Flight, found: Found | None) -> Kept | None:
        """The answer in what Redis had, kept in memory for as long as Redis keeps it."""
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

    # -- what the link tells

    def on_open(self) -> None:
        """Nothing to do: what was removed while it was away leaves memory when its time ends.

        To forget everything instead would take the box's answers from it whenever the link is
        lost, which happens first to a box that is overloaded.
        """

    def on_lost(self) -> None:
        """Nobody would tell any more what another box has written."""
        for flight in [flight for waiting in self._waiting.values() for flight in waiting]:
            self._finish(flight, None)

    def on_changed(self, keys: Iterable[bytes] | None) -> None:
        """Others have written or removed answers; None: any of them."""
        if keys is None:
            self._memory.clear()
            return
        for key in keys:
            self._counts.invalidated += 1
            self._memory.drop(key)
            self._read_again(key)

    def on_released(self, keys: Iterable[bytes]) -> None:
        """Other boxes have given claims back, with an answer or without."""
        for key in keys:
            self._read_again(key)

    def _read_again(self, key: bytes) -> None:
        for flight in list(self._waiting.get(key, ())):
            self._wait(flight, Stage.READING_AGAIN, self._spare_ns(flight) // 4)
            self._read(flight)

    # -- looking in

    def status(self) -> dict[str, Any]:
        """How Redis is."""
        return {
            **self.shared.link.status(),
            "invalidation": self.shared.link.tracks,
            "refused": self.shared.refused,
            "asking": len(self._asking),
        }
