"""`fcfs`: first come, first served; what the usual servers do, as a control.

Rule: an open target takes the class of the request that has waited longest, in the largest
batch that its queue fills, in order of arrival. Deadlines play no part in the order and there is
no admission test. As the laws demand, a request that is predicted to miss is dropped rather than
run, unless its caller accepts late results (as callers of the usual servers have to).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from policies.feasibility import doomed, queues_for
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


class Fcfs:
    """First come, first served, in batches as large as the queue fills.

    Args:
        quantile: The share of batches that must be done by the time that is counted on.
    """

    def __init__(self, quantile: float = 0.5) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, the longest waiting first."""
        yield from doomed(view, self.quantile)
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._oldest(view, target)
                if place is None:
                    break
                yield place

    def _oldest(self, view: View, target: TargetState) -> Place | None:
        candidates = queues_for(view, target)
        for queue, offers in sorted(candidates, key=lambda found: next(found[0].by_age()).id):
            for offer in offers:
                if batch := self._batch(view, target, queue, offer):
                    return Place(target.spec.id, offer, batch, "first come, first served")
        return None

    def _batch(
        self, view: View, target: TargetState, queue: ClassQueue, offer: Offer
    ) -> tuple[Request, ...]:
        start_ns = target.free_ns(view.now_ns)
        for size in reversed(target.curve(offer).batch_sizes):
            if size <= len(queue):
                finish_ns = start_ns + view.predict_ns(target, offer, size, self.quantile)
                welcome = (r for r in queue.by_age() if r.accept_late or r.deadline_ns >= finish_ns)
                batch = tuple(islice(welcome, size))
                if len(batch) == size:
                    return batch
        return ()
