"""`goodput`: finish as much as possible in time, and say no early. The default.

Rule, in three parts:

* Admission. A new request is placed in the fluid schedule of all that is queued: what is ahead
  of it in (priority, deadline) order is served at each target's best rate, then the request
  itself at the promised quantile. It is refused at once if it would miss, or if it would push a
  request that was promised service past its deadline (unless that one matters less). So nearly
  everything that is refused hears it on arrival, and what is admitted is kept.
* Service. While nothing is lost by it, the class with the most urgent request goes first, in
  the batch size with the most requests in time per device-second. When serving that class would
  make others miss, the choice is by (weight finished in time - weight lost meanwhile) per
  device-second, over all classes and batch sizes.
* Dropping. What no target can finish in time any more is dropped at once.

Wins under overload and with mixed classes; costs a little latency where batches pay.

Sources: the rate rule follows the value-density heuristics for overloaded real-time systems
(E. D. Jensen, C. D. Locke, H. Tokuda, "A Time-Driven Scheduling Model for Real-Time Operating
Systems", RTSS 1985); that a batch may take half the budget at most is from Nexus (H. Shen et
al., SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policies.feasibility import doomed, late_welcome, queues_for
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Drop, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState

SAMPLES_BEHIND = 4
"""Promised requests of each class that an arrival is checked against."""

WORTHWHILE = 1.03
"""A larger batch must raise the rate by this factor, since it makes its requests wait longer."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A batch that could be placed, with what it gains and loses."""

    place: Place
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

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses, drops, and fills every open target."""
        for request in view.arrivals:
            if not request.accept_late and (drop := self._refusal(view, request)):
                yield drop
        yield from doomed(view, self.quantile)
        placed = False
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._choose(view, target) or late_welcome(view, target)
                if place is None:
                    break
                placed = True
                yield place
        if placed:
            yield from doomed(view, self.quantile)

    # -- admission

    def _refusal(self, view: View, request: Request) -> Drop | None:
        finishes = self._finishes(view, request, request)
        if not finishes:
            return None
        earliest_ns = min(finishes.values())
        if earliest_ns > request.deadline_ns:
            late_ms = (earliest_ns - request.deadline_ns) / 1e6
            why = f"would be {late_ms:.1f} ms late behind what was admitted before"
        elif self._breaks_a_promise(view, request):
            why = "would make a request that was admitted before miss its deadline"
            last = max((queue.last() for queue in view.queues.values()), key=_order)
            finishes = self._finishes(view, last, request)
        else:
            return None
        return Drop(request, why, {name: ns - view.now_ns for name, ns in finishes.items()})

    def _breaks_a_promise(self, view: View, request: Request) -> bool:
        for queue in view.queues.values():
            for promised in queue.sample_behind(request, SAMPLES_BEHIND):
                if promised.accept_late or promised.priority > request.priority:
                    continue
                finishes = self._finishes(view, promised, promised)
                if promised.weight >= request.weight and finishes:
                    if min(finishes.values()) > promised.deadline_ns:
                        return True
        return False

    def _finishes(self, view: View, place_of: Request, request: Request) -> dict[str, int]:
        """When each target would have `request` done, served in the place of another."""
        starts: list[tuple[int, TargetState]] = []
        for target in view.targets.values():
            start_ns = view.start_ns(target)
            if start_ns is not None and target.usable(request.kind):
                starts.append((start_ns, target))
        if not starts:
            return {}
        starts.sort(key=lambda found: found[0])
        budget_ns = place_of.deadline_ns - view.now_ns
        work_ns = 0.0
        alike = 1
        for queue in view.queues.values():
            if ahead := queue.count_ahead(place_of):
                work_ns += ahead * self._unit_ns(view, queue, ahead, budget_ns)
                if queue.kind == request.kind:
                    alike += ahead
        ready_ns = _drained_ns([start for start, _ in starts], work_ns)
        return {
            target.spec.id: max(start_ns, ready_ns)
            + min(
                self._own_ns(view, target, offer, alike, budget_ns)
                for offer in target.usable(request.kind)
            )
            for start_ns, target in starts
        }

    def _own_ns(
        self, view: View, target: TargetState, offer: Offer, alike: int, budget_ns: int
    ) -> int:
        """How long the batch takes that a request will share with those alike ahead of it."""
        own_ns = 0
        for size in target.curve(offer).batch_sizes:
            latency_ns = view.predict_ns(target, offer, size, self.quantile)
            if size > 1 and (size > alike or 2 * latency_ns > budget_ns):
                break
            own_ns = latency_ns
        return own_ns

    def _unit_ns(self, view: View, queue: ClassQueue, count: int, budget_ns: int) -> float:
        """Target time per request of a class, with every target serving at its best rate."""
        rate = 0.0
        targets = 0
        for target in view.targets.values():
            offers = target.usable(queue.kind)
            if not offers or view.start_ns(target) is None:
                continue
            targets += 1
            best = 0.0
            for offer in offers:
                for size in target.curve(offer).batch_sizes:
                    latency_ns = view.predict_ns(target, offer, size, 0.5)
                    if size > 1 and (size > count or 2 * latency_ns > budget_ns):
                        break
                    best = max(best, size / latency_ns)
            rate += best
        return targets / rate if rate else 0.0

    # -- service

    def _choose(self, view: View, target: TargetState) -> Place | None:
        best: _Choice | None = None
        candidates = sorted(queues_for(view, target), key=lambda found: _order(found[0].head()))
        for queue, offers in candidates:
            choice = self._best_batch(view, target, queue, offers)
            if choice is None:
                continue
            if best is None or choice.rate > best.rate:
                best = choice
            if not best.lost:
                break
        return None if best is None else best.place

    def _best_batch(
        self, view: View, target: TargetState, queue: ClassQueue, offers: list[Offer]
    ) -> _Choice | None:
        start_ns = target.free_ns(view.now_ns)
        for offer in offers:
            best: _Choice | None = None
            for size in target.curve(offer).batch_sizes:
                if size > len(queue):
                    break
                run_ns = view.predict_ns(target, offer, size, self.quantile)
                batch = queue.first(size, start_ns + run_ns)
                if len(batch) < size:
                    break
                lost = self._lost(view, target, queue, batch, start_ns, run_ns)
                gained = sum(request.weight for request in batch)
                rate = (gained - lost) / view.predict_ns(target, offer, size, 0.5)
                if best is None or rate > best.rate * (WORTHWHILE if rate > 0 else 1.0):
                    reason = f"batch of {size}: {gained:g} in time, {lost:g} lost meanwhile"
                    best = _Choice(Place(target.spec.id, offer, tuple(batch), reason), lost, rate)
            if best is not None:
                return best
        return None

    def _lost(
        self,
        view: View,
        target: TargetState,
        own: ClassQueue,
        batch: list[Request],
        start_ns: int,
        run_ns: int,
    ) -> float:
        """How many waiting requests could start now, but not after this batch, nor elsewhere."""
        lost = 0
        for queue, offers in queues_for(view, target):
            one_ns = min(view.predict_ns(target, o, 1, self.quantile) for o in offers)
            too_late_ns = start_ns + run_ns + one_ns
            due = queue.count_due(too_late_ns) - queue.count_due(start_ns + one_ns)
            if queue is own:
                due -= sum(start_ns + one_ns <= r.deadline_ns < too_late_ns for r in batch)
            if due > 0 and not self._has_alternative(view, target, queue):
                lost += due
        return lost

    def _has_alternative(self, view: View, target: TargetState, queue: ClassQueue) -> bool:
        deadline_ns = queue.head().deadline_ns
        finishes = view.earliest_finish_ns(queue.kind, self.quantile)
        return any(
            finish_ns <= deadline_ns
            for name, finish_ns in finishes.items()
            if name != target.spec.id
        )


def _order(request: Request) -> tuple[int, int, int]:
    return request.priority, request.deadline_ns, request.id


def _drained_ns(starts_ns: list[int], work_ns: float) -> int:
    """When targets that become free at `starts_ns` (ascending) have done the work together."""
    total = 0
    for count, start_ns in enumerate(starts_ns, 1):
        total += start_ns
        ready_ns = (total + work_ns) / count
        if count == len(starts_ns) or ready_ns <= starts_ns[count]:
            return int(ready_ns)
    return 0
