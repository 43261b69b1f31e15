"""The cache in front of the driver: it answers what it can, and passes the rest on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from scheduler.config.cache import CacheConfig
from scheduler.core.events import BY_CALLER
from scheduler.core.outcomes import Outcome
from scheduler.daemon.asyncio_tasks import end_tasks, start_task
from scheduler.daemon.cache.central import CentralCopy
from scheduler.daemon.cache.classes import CacheClass, CacheClasses
from scheduler.daemon.cache.counts import Counts
from scheduler.daemon.cache.entries import Kept, pack
from scheduler.daemon.cache.flights import Flight, Held, Stage
from scheduler.daemon.cache.lookups import Lookups
from scheduler.daemon.cache.memory import MemoryTier
from scheduler.daemon.cache.redis_link import RedisLink
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.errors import SHUTTING_DOWN

TARGET = "cache"
TARGET_NEAR = "cache (near)"
TARGET_RUNNING = "cache (running)"


class ResultCache:
    """Takes requests in the driver's place.

    Args:
        driver: Runs the requests that the cache can't answer.
        settings: What may be kept, and where.
    """

    def __init__(self, driver: Driver, settings: CacheConfig) -> None:
        """Empty, and not connected; see `open`."""
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._classes = CacheClasses(driver.catalog, settings)
        self._memory = MemoryTier(settings.max_mb * 10**6)
        self._counts = Counts()
        self._lookups: Lookups | None = None
        if settings.url != "memory://":
            self._lookups = Lookups(
                driver, settings, self._classes, self._memory, self._counts, self._on_looked_up
            )
        self._central: CentralCopy | None = None
        if settings.central_url is not None:
            self._central = CentralCopy(settings.central_url, settings.central_mb * 10**6)
        self._most_input = settings.max_input_kb * 1000
        self._flights: dict[bytes, Flight] = {}
        self._held: dict[int, Held] = {}
        self._last_id = 0
        self._due: list[Flight] = []
        self._closing = self._flushing = False
        self._tasks: list[asyncio.Task[None]] = []

    # -- beginning and end

    def open(self) -> None:
        """Connects to the configured Redis servers, in the background."""
        links: list[RedisLink] = []
        if self._lookups is not None:
            links.append(self._lookups.shared.link)
        if self._central is not None:
            links.append(self._central.link)
        self._tasks = [start_task(link.keep_connected(), "the link to Redis") for link in links]

    def settle(self) -> None:
        """Passes on all requests that wait for Redis, so that the driver can drain them."""
        self._closing = True
        if self._lookups is not None:
            self._lookups.end_all()
        self._send_due()

    async def close(self) -> None:
        """Hangs up."""
        await end_tasks(self._tasks)

    # -- requests

    def submit(self, submissions: list[Submission]) -> list[int]:
        """Submits requests in this order and returns their ids; each is answered exactly once."""
        now_ns = self._driver.clock_ns()
        onward: list[tuple[int, Submission, Flight | None]] = []
        ids = [0] * len(submissions)
        for place, submission in enumerate(submissions):
            kind = self._kind_of(submission)
            if kind is None:
                onward.append((place, submission, None))
                continue
            held, flight = self._begin(kind, submission, now_ns)
            if held is not None:
                ids[place] = held.id
            if flight is not None and not self._look_up(flight):
                onward.append((place, self._to_driver(flight), flight))
        if onward:
            given = self._driver.submit([submission for _, submission, _ in onward])
            for (place, _, flight), driver_id in zip(onward, given, strict=True):
                if flight is None:
                    ids[place] = driver_id
                else:
                    flight.driver_id = driver_id
        return ids

    def cancel(self, request_id: int) -> None:
        """Cancels a request, unless it has ended; others that share its flight still get it."""
        if request_id >= 0:
            self._driver.cancel(request_id)
            return
        held = self._held.get(request_id)
        if held is None or held.flight is None:
            return
        flight = held.flight
        flight.remove(held)
        if not flight.callers:
            running = flight.stage is Stage.RUNNING
            self._end(flight)
            if running:
                self._driver.cancel(flight.driver_id)
            else:
                self._release(flight)
        self._reply(held, Answer(Outcome.CANCELLED, BY_CALLER, {}))

    def _kind_of(self, submission: Submission) -> CacheClass | None:
        """The cache class of a request; None if the request bypasses the cache."""
        kind = self._classes.of(submission.kind, submission.specs)
        if kind is None:
            self._counts.skipped.model += 1
        elif len(submission.body) > self._most_input:
            self._counts.skipped.size += 1
        elif len(self._held) < self._driver.core.limits.requests:
            return kind
        return None

    def _begin(
        self, kind: CacheClass, submission: Submission, now_ns: int
    ) -> tuple[Held | None, Flight | None]:
        """Answers a request, or holds it; returns it if held, and the flight that it leads."""
        key = kind.key(submission.specs, submission.body)
        kept = self._memory.get(key, now_ns)
        if self._give(kept, submission, now_ns, TARGET):
            self._counts.hits.memory += 1
            return None, None
        blocks = None
        if kind.near is not None:
            blocks = kind.near.blocks(submission.body)
            near = kind.near.find(blocks, now_ns)
            kept = None if near is None else self._memory.get(near, now_ns)
            if self._give(kept, submission, now_ns, TARGET_NEAR):
                self._counts.hits.near += 1
                return None, None
        self._last_id -= 1
        held = self._held[self._last_id] = Held(self._last_id, submission, now_ns)
        flight = self._flights.get(key)
        if flight is not None and flight.serves(submission):
            flight.add(held)
            return held, None
        # A request more urgent than the one in flight leads a flight of its own.
        flight = self._flights[key] = Flight(kind, key, held, blocks)
        return held, flight

    # -- Redis

    def _look_up(self, flight: Flight) -> bool:
        return self._lookups is not None and not self._closing and self._lookups.begin(flight)

    def _on_looked_up(self, flight: Flight, kept: Kept | None, elsewhere: bool) -> None:
        if kept is None:
            self._go_on(flight)
            return
        self._end(flight)
        target = TARGET_RUNNING if elsewhere else TARGET
        for held in flight.callers:
            answer = self._hit(kept, held.submission, held.arrived_ns, target)
            if not _is_wanted(answer, held.submission):
                self._go_on(Flight(flight.kind, flight.key, held, flight.blocks))
                continue
            self._counts.hits.running += elsewhere
            self._counts.hits.redis += not elsewhere
            self._reply(held, answer)
        self._release(flight)
        if not self._flushing:  # one read may have brought many answers
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._driver.after_event()

    # -- the driver

    def _go_on(self, flight: Flight) -> None:
        """Sends a flight to the driver, together with others of this turn of the loop."""
        flight.stage = Stage.DUE
        if not self._due:
            self._loop.call_soon(self._send_due)
        self._due.append(flight)

    def _send_due(self) -> None:
        due, self._due = self._due, []
        flights = [flight for flight in due if flight.stage is Stage.DUE]
        if flights:
            given = self._driver.submit([self._to_driver(flight) for flight in flights])
            for flight, driver_id in zip(flights, given, strict=True):
                flight.driver_id = driver_id

    def _to_driver(self, flight: Flight) -> Submission:
        """The flight's submission as the driver gets it, with the answer for the flight.

        It is a copy: a submission that led to its own flight would keep its tensors in memory
        until the next collection of cyclic garbage, which is rare.
        """
        self._counts.misses += 1
        flight.stage = Stage.RUNNING
        return replace(flight.submission, reply=partial(self._on_answer, flight))

    def _on_answer(self, flight: Flight, answer: Answer) -> None:
        if flight.stage is Stage.ENDED:  # all callers went away
            self._release(flight)
            return
        self._end(flight)
        answer.cache = "miss"
        if answer.outputs is None or answer.offer is None:
            self._fail(flight, answer)
            return
        specs, body = answer.outputs
        keeps = self._keeps(flight, answer, len(body))
        kept: Kept | None = None
        if keeps or flight.followers:
            # The body is a slice of the whole batch's buffer, which it would keep in memory.
            own = memoryview(bytes(body))
            kept = Kept(specs, own, answer.offer.variant, answer.offer.runtime)
        if flight.leader is not None:
            self._reply(flight.leader, answer)
        if kept is not None:
            self._tell_followers(flight, kept, answer)
        if keeps and kept is not None:
            self._keep(flight, kept)
        else:
            self._release(flight)

    def _tell_followers(self, flight: Flight, kept: Kept, answer: Answer) -> None:
        for held in flight.followers:
            self._counts.hits.running += 1
            hit = self._hit(kept, held.submission, held.arrived_ns, TARGET_RUNNING)
            hit.notes = answer.notes
            if answer.outcome is Outcome.COMPLETED:  # their deadlines are no earlier
                hit.outcome = answer.outcome
            self._reply(held, hit)

    def _fail(self, flight: Flight, answer: Answer) -> None:
        """Tells the leader; followers, who may have more time, continue in flights of their own."""
        self._release(flight)
        if flight.leader is not None:
            self._reply(flight.leader, answer)
        for held in flight.followers:
            if self._closing:  # the driver admits nothing more; the client tries elsewhere
                self._reply(held, Answer(Outcome.UNAVAILABLE, SHUTTING_DOWN, {}))
            else:
                self._go_on(Flight(flight.kind, flight.key, held, flight.blocks))

    def _release(self, flight: Flight) -> None:
        """Gives back the flight's claim, so that other boxes need not wait for this one."""
        if self._lookups is not None:
            self._lookups.release(flight)

    # -- keeping

    def _keeps(self, flight: Flight, answer: Answer, size: int) -> bool:
        """Whether to keep an answer.

        An answer with notes is not kept: it is not what other requests would get, for example
        because its input was shrunk for a slow link.
        """
        kind, ran = flight.kind, answer.offer
        return (
            ran is not None
            and not answer.notes
            and size <= kind.most_bytes
            and flight.key not in self._memory
            and self._classes.may_keep(kind, answer.target, ran.runtime, answer.digest)
        )

    def _keep(self, flight: Flight, kept: Kept) -> None:
        kind, key, now_ns = flight.kind, flight.key, self._driver.clock_ns()
        if kind.near is not None and flight.blocks is not None:
            kind.near.add(flight.blocks, key, now_ns)
        self._memory.put(key, kept, now_ns + kind.ttl_ns, now_ns)
        self._counts.stored += 1
        if self._lookups is None and self._central is None:
            return
        value = pack(key, kept)
        if self._lookups is not None:
            self._lookups.store(flight, value)
        if self._central is not None:
            self._central.put(kind.model, key, value, kind.ttl_ms)

    # -- answers

    def _give(self, kept: Kept | None, submission: Submission, now_ns: int, target: str) -> bool:
        """Answers with a kept answer, if there is one in time; returns whether it did."""
        answer = None if kept is None else self._hit(kept, submission, now_ns, target)
        if answer is None or not _is_wanted(answer, submission):
            return False
        submission.reply(answer)
        return True

    def _hit(self, kept: Kept, submission: Submission, arrived_ns: int, target: str) -> Answer:
        now_ns = self._driver.clock_ns()
        outcome = Outcome.COMPLETED if now_ns <= submission.deadline_ns else Outcome.LATE
        total_ns = now_ns - arrived_ns
        waited_ns = total_ns if target is TARGET_RUNNING else 0
        return Answer(
            outcome,
            "",
            {},
            target,
            kept,
            1,
            (kept.specs, kept.body),
            (waited_ns, 0, 0, total_ns),
            cache="hit",
        )

    def _reply(self, held: Held, answer: Answer) -> None:
        del self._held[held.id]
        held.flight = None  # nor may the two keep each other
        held.submission.reply(answer)

    def _end(self, flight: Flight) -> None:
        if self._lookups is not None:
            self._lookups.forget(flight)
        flight.stage = Stage.ENDED
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    # -- inspection

    def status(self) -> dict[str, Any]:
        """The cache's counters and contents, for people and programs."""
        memory = self._memory
        return {
            **self._counts.describe(),
            "stale": memory.stale,
            "evicted": memory.evicted,
            "entries": len(memory),
            "bytes": memory.bytes,
            "held": len(self._held),
            "redis": None if self._lookups is None else self._lookups.status(),
            "central": None if self._central is None else self._central.status(),
        }


def _is_wanted(answer: Answer, submission: Submission) -> bool:
    """Whether the answer is in time, or the caller accepts late ones."""
    return answer.outcome is not Outcome.LATE or submission.accept_late
