"""The accepted requests that have not ended: where each one is, and when each one expires."""

from __future__ import annotations

import heapq

from scheduler.core.outcomes import Outcome
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import Run

_SLACK = 1_000
"""How many expiries of ended requests may be kept, since most of them are due soon anyway."""

_ID_BITS = 64
"""An expiry is one number, the deadline before so many bits of the id: numbers in a heap are
compared faster than tuples."""

_IDS = (1 << _ID_BITS) - 1


class Record:
    """An accepted request that has not ended.

    Attributes:
        request: The request as queued; its class changes when it must run alone.
        arrived_ns: When it was submitted.
        queued: Whether it is in its class's queue.
        run: The run it is part of; None if it is queued.
        hedge: The run of its second copy, if any.
        queue_ns: Time from arrival to the last dispatch.
        attempts: How often it was dispatched, not counting runs that never started.
    """

    __slots__ = ("arrived_ns", "attempts", "hedge", "queue_ns", "queued", "request", "run")

    def __init__(self, request: Request, arrived_ns: int) -> None:
        """Starts neither queued nor running."""
        self.request = request
        self.arrived_ns = arrived_ns
        self.queued = False
        self.run: Run | None = None
        self.hedge: Run | None = None
        self.queue_ns = 0
        self.attempts = 0

    def keep_other(self, run: Run, started: bool) -> None:
        """Keeps the other copy of a request that had two, when one of the runs is lost."""
        if self.run is run:
            self.run = self.hedge
            self.attempts += started
        self.hedge = None


class Ledger:
    """Every accepted request until it ends, which it does exactly once.

    Attributes:
        records: The requests that have not ended, by id.
        queues: The queued ones among them, by class; no queue is empty.
        classes: How many of these queues each model has, of those that have any.
        counts: How many requests ended with each outcome.
        accepted: How many were accepted so far.
        held_bytes: The size of the tensors of the requests that have not ended.
        last_id: The highest id so far.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.records: dict[int, Record] = {}
        self.queues: dict[RequestClass, ClassQueue] = {}
        self.classes: dict[str, int] = {}
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.accepted = 0
        self.held_bytes = 0
        self.last_id = 0
        self._expiries: list[int] = []

    def open(self, request: Request, now_ns: int) -> Record:
        """Accepts a request; from now on it must end in exactly one outcome."""
        record = self.records[request.id] = Record(request, now_ns)
        self.last_id = request.id
        self.accepted += 1
        self.held_bytes += request.size_bytes
        heapq.heappush(self._expiries, request.deadline_ns << _ID_BITS | request.id)
        if len(self._expiries) > 2 * len(self.records) + _SLACK:
            self._forget_ended()
        return record

    def _forget_ended(self) -> None:
        """Removes the expiries of ended requests, so that far deadlines don't accumulate."""
        self._expiries = [expiry for expiry in self._expiries if expiry & _IDS in self.records]
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
        """Puts a request into its class's queue."""
        kind = record.request.kind
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = ClassQueue(kind)
            self.classes[kind.model] = self.classes.get(kind.model, 0) + 1
        queue.push(record.request)
        record.queued = True

    def requeue(self, record: Record) -> None:
        """Puts a request back into its class's queue, where it is as old as before."""
        self.enqueue(record)
        self.queues[record.request.kind].sort_by_age()

    def dequeue(self, record: Record) -> None:
        """Takes a request out of its class's queue."""
        kind = record.request.kind
        queue = self.queues[kind]
        queue.remove(record.request)
        record.queued = False
        if not queue:
            del self.queues[kind]
            self.classes[kind.model] -= 1
            if not self.classes[kind.model]:
                del self.classes[kind.model]

    def queued(self) -> list[Record]:
        """The queued requests, in order of arrival."""
        return [record for record in self.records.values() if record.queued]

    def take_expired(self, now_ns: int) -> list[Record]:
        """The requests whose deadline has passed; each is returned once.

        A running request whose caller accepts late results is left out.
        """
        expiries, before = self._expiries, now_ns << _ID_BITS
        found: list[Record] = []
        while expiries and expiries[0] < before:
            record = self.records.get(heapq.heappop(expiries) & _IDS)
            if record is not None and not (record.run and record.request.accept_late):
                found.append(record)
        return found

    def next_expiry_ns(self) -> int | None:
        """The first moment at which the next deadline has passed; None if nothing is held."""
        expiries = self._expiries
        while expiries and expiries[0] & _IDS not in self.records:
            heapq.heappop(expiries)
        return (expiries[0] >> _ID_BITS) + 1 if expiries else None
