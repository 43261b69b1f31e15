"""`edf`: the most urgent request first.

Rule: an open target takes the class whose first request in (priority, deadline) order is the
most urgent of those that it can finish in time, in the largest batch that keeps that request in
time. What no target can finish in time is dropped when that is known. There is no admission
test: under overload requests are accepted, wait, and are dropped later.

Source: C. L. Liu and J. W. Layland, "Scheduling Algorithms for Multiprogramming in a
Hard-Real-Time Environment", JACM 20(1), 1973 (deadline-driven scheduling).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.feasibility import doomed, late_welcome, queues_for
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


class Edf:
    """Earliest deadline first, within priorities.

    Args:
        quantile: The share of batches that must be done by the time that is counted on.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, the most urgent requests first."""
        yield from doomed(view, self.quantile)
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._most_urgent(view, target) or late_welcome(view, target)
                if place is None:
                    break
                yield place
        yield from doomed(view, self.quantile)

    def _most_urgent(self, view: View, target: TargetState) -> Place | None:
        best: tuple[tuple[int, int, int], ClassQueue, Offer] | None = None
        start_ns = target.free_ns(view.now_ns)
        for queue, offers in queues_for(view, target):
            for offer in offers:
                one_ns = start_ns + view.predict_ns(target, offer, 1, self.quantile)
                if found := queue.first(1, one_ns):
                    head = found[0]
                    urgency = (head.priority, head.deadline_ns, head.id)
                    if best is None or urgency < best[0]:
                        best = urgency, queue, offer
                    break
        if best is None:
            return None
        (_, deadline_ns, _), queue, offer = best
        return self._largest_in_time(view, target, queue, offer, deadline_ns)

    def _largest_in_time(
        self, view: View, target: TargetState, queue: ClassQueue, offer: Offer, deadline_ns: int
    ) -> Place:
        start_ns = target.free_ns(view.now_ns)
        chosen: tuple[Request, ...] = ()
        for size in target.curve(offer).batch_sizes:
            finish_ns = start_ns + view.predict_ns(target, offer, size, self.quantile)
            if size > len(queue) or finish_ns > deadline_ns:
                break
            batch = queue.first(size, finish_ns)
            if len(batch) == size:
                chosen = tuple(batch)
        return Place(target.spec.id, offer, chosen, "earliest deadline first")
