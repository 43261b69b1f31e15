"""The queue simulated ahead: which request would run where and when without new arrivals."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from policies.parts.outlook import NEVER_NS, Bid, Outlook
from policies.parts.serving import order
from scheduler.core.latency import Ladder, LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass

HORIZON = 256
"""How many requests are simulated; those behind them are not decided about now anyway."""

Cost = Callable[[Bid, Offer, int, int], float]
"""What a batch costs, given its bid, variant, size and execution time in nanoseconds."""

Rank = tuple[float, int]
"""A sort key, lowest first: what a request adds to the costs, and when it would be done."""


@dataclass(slots=True)
class Planned:
    """A planned batch.

    Attributes:
        bid: Where it runs.
        offer: The variant.
        start_ns: When it is expected to start.
        ladder: The variant's latency there, at the promised quantile.
        median: The variant's median latency, by which the target is expected to be free.
        deadline_ns: The earliest of its deadlines.
        done_ns: When it is done, at the promised quantile.
        next_ns: When it would be done with one more request; a time that never comes if one of its
            requests would then be late, or it is full.
        rung: The place of the size with one more request in the ladder.
        requests: Its requests.
    """

    bid: Bid
    offer: Offer
    start_ns: int
    ladder: Ladder
    median: Ladder
    deadline_ns: int = NEVER_NS
    done_ns: int = 0
    next_ns: int = NEVER_NS
    rung: int = 0
    requests: list[Request] = field(default_factory=list)

    def add(self, request: Request) -> int:
        """Adds a request; returns when the target is then expected to be free."""
        self.requests.append(request)
        if request.deadline_ns < self.deadline_ns:
            self.deadline_ns = request.deadline_ns
        start_ns, ladder, rung = self.start_ns, self.ladder, self.rung
        count, item_ns = len(self.requests), self.bid.item_ns
        self.done_ns = start_ns + ladder.latency_ns[rung]
        if item_ns:  # as in `Bid.takes_ns`
            self.done_ns -= (ladder.sizes[rung] - count) * item_ns
        free_ns = start_ns + self.median.latency_ns[rung]
        if count == ladder.sizes[rung]:
            rung = self.rung = rung + 1
        next_ns = NEVER_NS
        if rung < len(ladder.sizes):
            next_ns = start_ns + ladder.latency_ns[rung]
            if item_ns:
                next_ns -= (ladder.sizes[rung] - count - 1) * item_ns
        self.next_ns = next_ns if next_ns <= self.deadline_ns else NEVER_NS
        return free_ns

    def cramping(self, waiting: int) -> list[Request]:
        """Its requests that would be late in the larger batch for which enough requests wait.

        None if that batch would not do more in the same time.
        """
        ladder, size = self.ladder, len(self.requests)
        rung, larger = self.bid.largest(ladder, waiting)
        larger_ns = self.bid.takes_ns(ladder, rung, larger)
        if (self.done_ns - self.start_ns) * larger <= larger_ns * size:
            return []
        until_ns = self.start_ns + larger_ns
        return [request for request in self.requests if request.deadline_ns < until_ns]

    def added_cost(self, cost: Cost) -> float:
        """What one more request adds to the costs."""
        size, median = len(self.requests), self.median
        now_ns, then_ns = (
            median.latency_ns[bisect_left(median.sizes, n)] for n in (size, size + 1)
        )
        more = cost(self.bid, self.offer, size + 1, then_ns)
        return more - cost(self.bid, self.offer, size, now_ns)


@dataclass(slots=True)
class Plan:
    """What would happen to the queues.

    Attributes:
        batches: The batches in the order they were planned; those of one target in the order in
            which it would run them.
        unplaced: The requests without a place in time, including those that may be late.
    """

    batches: list[Planned] = field(default_factory=list)
    unplaced: list[Request] = field(default_factory=list)

    @property
    def late(self) -> list[Request]:
        """The requests without a place in time, except those that may be late."""
        return [request for request in self.unplaced if not request.accept_late]

    def cramping(self) -> list[Request]:
        """The requests whose deadlines keep the next batch of a target small, though more wait.

        A larger batch without them does more in the same time. So a policy that does as much as
        possible leaves them out, and they are lost, though they have a place in time.
        """
        firsts: dict[str, Planned] = {}
        waiting: dict[str, int] = {}
        for batch in self.batches:
            target_id = batch.bid.target_id
            first = firsts.setdefault(target_id, batch)
            if first.bid is batch.bid:
                waiting[target_id] = waiting.get(target_id, 0) + len(batch.requests)
        return [
            request
            for target_id, first in firsts.items()
            if len(first.requests) < waiting[target_id]
            for request in first.cramping(waiting[target_id])
        ]

    def free_ns(self, outlook: Outlook) -> dict[str, int]:
        """When each target could start something else, by target id."""
        free_ns = dict(outlook.starts_ns)
        for batch in self.batches:
            free_ns[batch.bid.target_id] = batch.done_ns
        return free_ns

    def next_on(self, target_id: str) -> Planned | None:
        """The batch that a target would run first; None if it has none."""
        return next((b for b in self.batches if b.bid.target_id == target_id), None)


_Opening = tuple[Bid, Offer, LatencyCurve, int, Ladder, Ladder]
"""How a batch of a class could begin: the bid, a variant of it, its curve, the curve's version, and
its ladders at the promised quantile and at the median."""

_Step = tuple["Planned | None", "Planned | None", int, int, int, int, int]
"""What undoes one step: the batch that the request joined; the last batch of its target and when
the target was free before; and the batch's deadline, end, end with one more, and rung before."""

_UNPLACED: _Step = (None, None, 0, 0, 0, 0, 0)


class Course:
    """A plan in the making; requests are added in order of service.

    Each request joins the last batch of a target if that makes no request late. Otherwise it starts
    a new batch where it would be in time. Of several choices it takes the one that adds least to
    the costs, then the one that is done first. Joining is preferred whatever it costs: it leaves
    time for more, and saves energy.

    Args:
        outlook: What the targets could do; its `look` must have been called.
        cost: What batches cost; without it, costs are ignored.

    Attributes:
        plan: What would happen to the requests added so far.
        added: Those requests.
    """

    def __init__(self, outlook: Outlook, cost: Cost | None = None) -> None:
        """Starts with all targets as they are now."""
        self.plan = Plan()
        self.added: list[Request] = []
        self._outlook = outlook
        self._cost = cost
        self._starts_ns = dict(outlook.starts_ns)
        self._free_ns = dict(outlook.starts_ns)
        self._last: dict[str, Planned] = {}
        self._openings: dict[RequestClass, tuple[list[Bid], list[_Opening]]] = {}
        self._steps: list[_Step] = []

    def add(self, request: Request) -> None:
        """Finds a place for one more request."""
        kind = request.kind
        known = self._openings.get(kind)
        if known is None:
            bids = self._outlook.bids(kind)
            known = self._openings[kind] = bids, list(_openings(bids))
        openings = known[1]
        self.added.append(request)
        batch = self._joined(request, openings) or self._begun(request, openings)
        if batch is None:
            self.plan.unplaced.append(request)
            self._steps.append(_UNPLACED)
            return
        target_id = batch.bid.target_id
        last, free_ns = self._last.get(target_id), self._free_ns[target_id]
        before = batch.deadline_ns, batch.done_ns, batch.next_ns, batch.rung
        self._steps.append((batch, last, free_ns, *before))
        if batch is not last:
            self.plan.batches.append(batch)
            self._last[target_id] = batch
        self._free_ns[target_id] = batch.add(request)

    def undo(self) -> None:
        """Takes back the last request."""
        self.added.pop()
        batch, last, free_ns, deadline_ns, done_ns, next_ns, rung = self._steps.pop()
        if batch is None:
            self.plan.unplaced.pop()
            return
        target_id = batch.bid.target_id
        self._free_ns[target_id] = free_ns
        if batch is last:
            batch.requests.pop()
            batch.deadline_ns, batch.done_ns = deadline_ns, done_ns
            batch.next_ns, batch.rung = next_ns, rung
            return
        self.plan.batches.pop()
        if last is None:
            del self._last[target_id]
        else:
            self._last[target_id] = last

    def holds(self) -> bool:
        """Whether it would be planned in the same way now; costs must not have changed.

        A target without a batch may be free later than it was: it was not chosen even so.
        """
        starts_ns, outlook = self._starts_ns, self._outlook
        if starts_ns.keys() != outlook.starts_ns.keys():
            return False
        for target_id, start_ns in outlook.starts_ns.items():
            before_ns = starts_ns[target_id]
            if start_ns != before_ns and (start_ns < before_ns or target_id in self._last):
                return False
        for kind, (bids, openings) in self._openings.items():
            if outlook.bids(kind) is not bids:
                return False
            for _, _, curve, version, _, _ in openings:
                if curve.version != version:
                    return False
        for target_id, start_ns in outlook.starts_ns.items():
            if start_ns != starts_ns[target_id]:
                starts_ns[target_id] = self._free_ns[target_id] = start_ns
        return True

    def _joined(self, request: Request, openings: list[_Opening]) -> Planned | None:
        deadline_ns, cost, last = request.deadline_ns, self._cost, self._last
        best: tuple[Rank, Planned] | None = None
        for opening in openings:
            bid = opening[0]
            batch = last.get(bid.target_id)
            if batch is None or batch.next_ns > deadline_ns or batch.bid is not bid:
                continue
            rank = batch.added_cost(cost) if cost else 0.0, batch.next_ns
            if best is None or rank < best[0]:
                best = rank, batch
        return best[1] if best else None

    def _begun(self, request: Request, openings: list[_Opening]) -> Planned | None:
        deadline_ns, cost, free_ns = request.deadline_ns, self._cost, self._free_ns
        best: tuple[Rank, _Opening] | None = None
        for opening in openings:
            bid, offer, _, _, ladder, median = opening
            done_ns = free_ns[bid.target_id] + ladder.latency_ns[0]
            if done_ns > deadline_ns:
                continue
            rank = cost(bid, offer, 1, median.latency_ns[0]) if cost else 0.0, done_ns
            if best is None or rank < best[0]:
                best = rank, opening
        if best is None:
            return None
        bid, offer, _, _, ladder, median = best[1]
        return Planned(bid, offer, free_ns[bid.target_id], ladder, median)


def in_order(view: View) -> Iterator[Request]:
    """All queued requests, in order of service."""
    return heapq.merge(*view.queues.values(), key=order)


def _openings(bids: list[Bid]) -> Iterator[_Opening]:
    for bid in bids:
        for (offer, ladder), curve in zip(bid.ladders(), bid.curves, strict=True):
            yield bid, offer, curve, curve.version, ladder, curve.ladder(0.5)


def plan(outlook: Outlook, cost: Cost | None = None, without: Collection[int] = ()) -> Plan:
    """Simulates the queues ahead in (priority, deadline, id) order, as far as the horizon.

    Args:
        outlook: What the targets could do; its `look` must have been called.
        cost: What batches cost; without it, costs are ignored.
        without: The ids of requests to leave out.
    """
    course = Course(outlook, cost)
    for request in in_order(outlook.view):
        if request.id in without:
            continue
        if len(course.added) == HORIZON:
            break
        course.add(request)
    return course.plan
