"""The accepted requests that have not ended: where each one is, and when each one expires."""

from __future__ import annotations

import heapq

from scheduler.core.outcomes import Outcome
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import Run

_SLACK = 1_000
"""Expiries of ended requests that may be kept, since most of them are soon due anyway."""


class Record:
    """An accepted request that has not ended.

    Attributes:
        request: As it is queued; its class changes when it must run alone.
        arrived_ns: When it was submitted.
        queued: Whether it waits in its class's queue.
        run: The run that it is part of.
        hedge: The run of its second copy, if there is one.
        queue_ns: Time between arrival and the last dispatch.
        attempts: How often it was dispatched, without the runs that never started.
    """

    __slots__ = ("arrived_ns", "attempts", "hedge", "queue_ns", "queued", "request", "run")

    def __init__(self, request: Request, arrived_ns: int) -> None:
        """Has just arrived."""
        self.request = request
        self.arrived_ns = arrived_ns
        self.queued = False
        self.run: Run | None = None
        self.hedge: Run | None = None
        self.queue_ns = 0
        self.attempts = 0

    def keep_other(self, run: Run, started: bool) -> None:
        """Goes on with the other copy of a request that had two, when a run is lost."""
        if self.run is run:
            self.run = self.hedge
            self.attempts += started
        self.hedge = None


class Ledger:
    """Every accepted request until it ends, exactly once.

    Attributes:
        records: The requests that have not ended, by id.
        queues: Those of them that wait, by class; no queue is empty.
        counts: How many ended how.
        accepted: How many were ever accepted.
        held_bytes: The tensors of the requests that have not ended.
        last_id: The highest id so far.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.records: dict[int, Record] = {}
        self.queues: dict[RequestClass, ClassQueue] = {}
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.accepted = 0
        self.held_bytes = 0
        self.last_id = 0
        self._expiries: list[tuple[int, int]] = []

    def open(self, request: Request, now_ns: int) -> Record:
        """Accepts a request; from now on it must end in exactly one outcome."""
        record = self.records[request.id] = Record(request, now_ns)
        self.last_id = request.id
        self.accepted += 1
        self.held_bytes += request.size_bytes
        heapq.heappush(self._expiries, (request.deadline_ns, request.id))
        if len(self._expiries) > 2 * len(self.records) + _SLACK:
            self._forget_ended()
        return record

    def _forget_ended(self) -> None:
        """Keeps the expiries in proportion to what is held, however far ahead they are."""
        self._expiries = [expiry for expiry in self._expiries if expiry[1] in self.records]
        heapq.heapify(self._expiries)

    def close(self, record: Record, outcome: Outcome) -> None:
        """Ends a request, wherever it is."""
        request = record.request
        if record.queued:
            self.dequeue(record)
        elif record.run is not None:
            record.run.waiting.discard(request.id)
            if record.hedge is not None:
                record.hedge.waiting.discard(request.id)
        del self.records[request.id]
        self.held_bytes -= request.size_bytes
        self.counts[outcome] += 1

    def enqueue(self, record: Record) -> None:
        """Lets a request wait in its class's queue."""
        kind = record.request.kind
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = ClassQueue(kind)
        queue.push(record.request)
        record.queued = True

    def dequeue(self, record: Record) -> None:
        """Takes a request out of its class's queue."""
        kind = record.request.kind
        queue = self.queues[kind]
        queue.remove(record.request)
        record.queued = False
        if not queue:
            del self.queues[kind]

    def queued(self) -> list[Record]:
        """The requests that wait, in order of arrival."""
        return [record for record in self.records.values() if record.queued]

    def take_expired(self, now_ns: int) -> list[Record]:
        """The requests whose deadline has passed, each of them once.

        One that runs is left out if its caller accepts late results.
        """
        expiries = self._expiries
        found: list[Record] = []
        while expiries and expiries[0][0] < now_ns:
            record = self.records.get(heapq.heappop(expiries)[1])
            if record is not None and not (record.run and record.request.accept_late):
                found.append(record)
        return found

    def next_expiry_ns(self) -> int | None:
        """The first moment at which a deadline will have passed."""
        expiries = self._expiries
        while expiries and expiries[0][1] not in self.records:
            heapq.heappop(expiries)
        return expiries[0][0] + 1 if expiries else None
