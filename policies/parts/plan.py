"""The queue simulated ahead: which request would run where and when without new arrivals."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import order
from scheduler.core.latency import Ladder
from scheduler.core.offers import Offer
from scheduler.core.requests import Request

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
        done_ns: When it is done, at the promised quantile.
        deadline_ns: The earliest of its deadlines.
        ladder: The variant's latency there, at the promised quantile.
        median: The variant's median latency, by which the target is expected to be free.
        requests: Its requests.
    """

    bid: Bid
    offer: Offer
    start_ns: int
    done_ns: int
    deadline_ns: int
    ladder: Ladder
    median: Ladder
    requests: list[Request] = field(default_factory=list)

    def fits(self, request: Request) -> int | None:
        """When it would be done with one more request; None if it does not fit in time."""
        rung = bisect_left(self.ladder.sizes, len(self.requests) + 1)
        if rung == len(self.ladder.sizes) or self.requests[0].kind != request.kind:
            return None
        done_ns = self.start_ns + self.ladder.latency_ns[rung]
        return done_ns if done_ns <= min(self.deadline_ns, request.deadline_ns) else None

    def add(self, request: Request) -> int:
        """Adds a request; returns when the target is then expected to be free."""
        self.requests.append(request)
        self.deadline_ns = min(self.deadline_ns, request.deadline_ns)
        rung = bisect_left(self.ladder.sizes, len(self.requests))
        self.done_ns = self.start_ns + self.ladder.latency_ns[rung]
        return self.start_ns + self.median.latency_ns[rung]

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

    def free_ns(self, outlook: Outlook) -> dict[str, int]:
        """When each target could start something else, by target id."""
        free_ns = dict(outlook.starts_ns)
        for batch in self.batches:
            free_ns[batch.bid.target_id] = batch.done_ns
        return free_ns

    def next_on(self, target_id: str) -> Planned | None:
        """The batch that a target would run first; None if it has none."""
        return next((b for b in self.batches if b.bid.target_id == target_id), None)


def plan(outlook: Outlook, cost: Cost | None = None, without: Collection[int] = ()) -> Plan:
    """Simulates the queues ahead in (priority, deadline, id) order.

    Each request joins the last batch of a target if that makes no request late. Otherwise it starts
    a new batch where it would be in time. Of several choices it takes the one that adds least to
    the costs, then the one that is done first. Joining is preferred whatever it costs: it leaves
    time for more, and saves energy.

    Args:
        outlook: What the targets could do; its `look` must have been called.
        cost: What batches cost; without it, costs are ignored.
        without: The ids of requests to leave out.
    """
    found = Plan()
    free_ns = dict(outlook.starts_ns)
    last: dict[str, Planned] = {}
    seen = 0
    for request in heapq.merge(*outlook.view.queues.values(), key=order):
        if request.id in without:
            continue
        seen += 1
        if seen > HORIZON:
            break
        bids = outlook.bids(request.kind)
        batch = _joined(request, bids, last, cost) or _begun(request, bids, free_ns, cost)
        if batch is None:
            found.unplaced.append(request)
            continue
        if not batch.requests:
            found.batches.append(batch)
            last[batch.bid.target_id] = batch
        free_ns[batch.bid.target_id] = batch.add(request)
    return found


def _joined(
    request: Request, bids: list[Bid], last: dict[str, Planned], cost: Cost | None
) -> Planned | None:
    best: tuple[Rank, Planned] | None = None
    for bid in bids:
        batch = last.get(bid.target_id)
        done_ns = batch.fits(request) if batch else None
        if batch and done_ns is not None:
            rank = batch.added_cost(cost) if cost else 0.0, done_ns
            if best is None or rank < best[0]:
                best = rank, batch
    return best[1] if best else None


def _begun(
    request: Request, bids: list[Bid], free_ns: dict[str, int], cost: Cost | None
) -> Planned | None:
    best: tuple[Rank, Planned] | None = None
    for bid in bids:
        start_ns = free_ns[bid.target_id]
        for (offer, ladder), curve in zip(bid.ladders(), bid.curves, strict=True):
            done_ns = start_ns + ladder.latency_ns[0]
            if done_ns > request.deadline_ns:
                continue
            median = curve.ladder(0.5)
            rank = cost(bid, offer, 1, median.latency_ns[0]) if cost else 0.0, done_ns
            if best is None or rank < best[0]:
                deadline_ns = request.deadline_ns
                best = rank, Planned(bid, offer, start_ns, done_ns, deadline_ns, ladder, median)
    return best[1] if best else None
