"""`edf`: the most urgent request first.

Rule: of the requests that an open target can finish in time, it takes the most urgent in (priority,
deadline) order, in the largest batch of its class that keeps that request in time. A request that
no target can finish in time any more is dropped as soon as that is known. There is no admission
test: under overload, requests are accepted, wait, and are dropped later.

Source: C. L. Liu and J. W. Layland, "Scheduling Algorithms for Multiprogramming in a
Hard-Real-Time Environment", JACM 20(1), 1973 (deadline-driven scheduling).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import batches, order, serve
from scheduler.core.latency import Ladder
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


class Edf:
    """Earliest deadline first, within priorities.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, the most urgent requests first."""
        return serve(self._outlook, view, self._most_urgent)

    def _most_urgent(self, target: TargetState) -> Place | None:
        best: tuple[tuple[int, int, int], ClassQueue, Bid, Offer, Ladder] | None = None
        start_ns = self._outlook.starts_ns[target.spec.id]
        for queue, bid in self._outlook.waiting(target):
            for offer, ladder in bid.ladders():
                if found := queue.first(1, start_ns + ladder.latency_ns[0]):
                    urgency = order(found[0])
                    if best is None or urgency < best[0]:
                        best = urgency, queue, bid, offer, ladder
                    break
        if best is None:
            return None
        (_, deadline_ns, _), queue, bid, offer, ladder = best
        batch = _largest_in_time(queue, bid, ladder, start_ns, deadline_ns)
        return Place(target.spec.id, offer, tuple(batch), "earliest deadline first")


def _largest_in_time(
    queue: ClassQueue, bid: Bid, ladder: Ladder, start_ns: int, deadline_ns: int
) -> list[Request]:
    """The largest batch that is done by a deadline; a batch of one is known to be."""
    chosen: list[Request] = []
    for batch, latency_ns in batches(queue, bid, ladder, start_ns):
        if start_ns + latency_ns > deadline_ns:
            break
        chosen = batch
    return chosen
