"""`goodput`: finish as much as possible in time, and say no early. The default.

Rule, in three parts:

* Admission (`policies.admission`). A new request is refused at once if it would miss, or if it
  would push a request that was promised service past its deadline (unless that one matters
  less). So nearly everything that is refused hears it on arrival, and what is admitted is kept.
  What takes more time per weight than others is refused first.
* Service. While nothing is lost by it, the class with the most urgent request goes first, in
  the batch size with the most requests in time per device-second. When serving that class would
  make others miss, the choice is by (weight finished in time - weight lost meanwhile) per
  device-second, over all classes, variants and batch sizes.
* Dropping. What no target can finish in time any more is dropped at once.

Wins under overload and with mixed classes; costs a little latency where batches pay. Loses where
nearly every deadline is as short as one batch and latency is noisy.

Source: the rate rule follows the value-density heuristics for overloaded real-time systems
(E. D. Jensen, C. D. Locke, H. Tokuda, "A Time-Driven Scheduling Model for Real-Time Operating
Systems", RTSS 1985).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from policies.admission import Admission
from policies.outlook import Bid, Outlook
from policies.pace import WORTHWHILE
from scheduler.core.latency import Ladder
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Drop, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


@dataclass(frozen=True, slots=True)
class _Choice:
    """A batch that could be placed, with what it gains and loses."""

    offer: Offer
    batch: list[Request]
    gained: float
    lost: float
    rate: float


class Goodput:
    """Maximises the weight finished in time.

    Args:
        quantile: The share of batches that must be done by the time that is counted on.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)
        self._admission = Admission(self._outlook)

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses, drops, and fills every open target."""
        outlook = self._outlook
        outlook.look(view)
        yield from self._refusals(view)
        yield from self._evictions()
        placed = False
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._choose(target) or outlook.late_welcome(target)
                if place is None:
                    break
                placed = True
                yield place
                outlook.look(view)
        if placed:
            yield from self._evictions()

    def _refusals(self, view: View) -> Iterator[Drop]:
        arrivals = view.arrivals
        if len(arrivals) > 1:
            arrivals.sort(key=_order)
        undecided = {request.id for request in arrivals}
        for request in arrivals:
            undecided.discard(request.id)
            if not request.accept_late:
                refusal = self._admission.refusal(request, undecided)
                if refusal is not None:
                    yield refusal

    def _evictions(self) -> Iterator[Drop]:
        for drop in self._outlook.doomed():
            budgets = self._admission.counter_offer(drop.request)
            yield replace(drop, earliest_budget_ns=budgets)

    # -- service

    def _choose(self, target: TargetState) -> Place | None:
        waiting = self._outlook.waiting(target)
        if len(waiting) > 1:
            waiting.sort(key=lambda found: _order(found[0].head()))
        best: _Choice | None = None
        for queue, bid in waiting:
            choice = self._best_batch(queue, bid, waiting)
            if choice is not None and (best is None or choice.rate > best.rate):
                best = choice
            if best is not None and not best.lost:
                break
        if best is None:
            return None
        reason = (
            f"batch of {len(best.batch)}: {best.gained:g} in time, {best.lost:g} lost meanwhile"
        )
        return Place(target.spec.id, best.offer, tuple(best.batch), reason)

    def _best_batch(
        self, queue: ClassQueue, bid: Bid, waiting: list[tuple[ClassQueue, Bid]]
    ) -> _Choice | None:
        """The best batch of a class: of the first variant with which nothing is lost, or any."""
        best: _Choice | None = None
        for (offer, ladder), curve in zip(bid.ladders(), bid.curves, strict=True):
            choice = self._best_size(queue, bid, waiting, offer, ladder, curve.ladder(0.5))
            if choice is not None and (best is None or choice.rate > best.rate):
                best = choice
                if not choice.lost:
                    break
        return best

    def _best_size(
        self,
        queue: ClassQueue,
        bid: Bid,
        waiting: list[tuple[ClassQueue, Bid]],
        offer: Offer,
        ladder: Ladder,
        median: Ladder,
    ) -> _Choice | None:
        start_ns = self._outlook.starts_ns[bid.target_id]
        best: _Choice | None = None
        for rung, size in enumerate(ladder.sizes):
            if size > len(queue):
                break
            done_ns = start_ns + ladder.latency_ns[rung]
            batch = queue.first(size, done_ns)
            if len(batch) < size:
                break
            lost = self._lost(queue, batch, start_ns, done_ns, waiting)
            gained = sum([request.weight for request in batch])
            rate = (gained - lost) / median.latency_ns[rung]
            if best is None or rate > best.rate * (WORTHWHILE if rate > 0 else 1.0):
                best = _Choice(offer, batch, gained, lost, rate)
        return best

    def _lost(
        self,
        own: ClassQueue,
        batch: list[Request],
        start_ns: int,
        done_ns: int,
        waiting: list[tuple[ClassQueue, Bid]],
    ) -> float:
        """The weight that could start now, but not after this batch, nor elsewhere."""
        lost = 0.0
        for queue, bid in waiting:
            one_ns = bid.one_ns()
            if queue.soonest_ns() >= done_ns + one_ns:
                continue
            due = queue.due(done_ns + one_ns, start_ns + one_ns)
            if queue is own:
                taken = {request.id for request in batch}
                due = [request for request in due if request.id not in taken]
            if due and not self._has_alternative(queue, bid):
                lost += sum([request.weight for request in due])
        return lost

    def _has_alternative(self, queue: ClassQueue, bid: Bid) -> bool:
        """Whether another target could finish the most urgent request of a class in time."""
        deadline_ns = queue.head().deadline_ns
        starts = self._outlook.starts_ns
        return any(
            starts[other.target_id] + other.one_ns() <= deadline_ns
            for other in self._outlook.bids(queue.kind)
            if other is not bid
        )


def _order(request: Request) -> tuple[int, int, int]:
    return request.priority, request.deadline_ns, request.id
