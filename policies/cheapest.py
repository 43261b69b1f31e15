"""`cheapest`: the lowest cost that meets the deadline with probability p.

Rule: the queues are simulated ahead in (priority, deadline) order. Each request is placed on the
target where it adds least to the costs (per request, per second of predicted time, and for the
energy measured for such a batch), among those where it would be done in time at quantile `p`,
either joining the last batch planned there or in a new batch behind it. Ties go to the target where
it is done first. The batch that is next on an open target is sent. A batch planned for a busy,
cheap target waits for it. A request without a place in this plan goes to any open target that can
finish it in time.

Inputs: costs, deadlines, latencies, transfer times, all queued requests. Wins with costly targets
(a cloud, a power-hungry GPU) and slack in the deadlines. Loses time against policies that spend:
requests wait for cheap targets, which misses deadlines when predictions are off. Energy that is not
measured, or has no price, costs nothing.

Source: least-cost feasible assignment, as in C. Zhang et al., "MArk: Exploiting Cloud Services
for Cost-Effective, SLO-Aware Machine Learning Inference Serving", USENIX ATC 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.outlook import Bid, Outlook
from policies.parts.plan import Plan, Planned, plan
from policies.parts.serving import LOOK_AGAIN_NS, candidates
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Place, View, Wake
from scheduler.core.targets import TargetState

FAILED = 1e9
"""What is added to the cost of a target for a request that it has failed."""


class Cheapest:
    """The lowest cost that is in time.

    Args:
        p: The probability with which the deadline must be met; another name for `quantile`.
        quantile: The latency quantile to rely on, from 0 to 1; 0.95 if neither is given.
    """

    def __init__(self, p: float | None = None, quantile: float | None = None) -> None:
        """Takes its options from the configuration."""
        if p is not None and quantile is not None:
            raise ValueError(f"p and quantile are the same: give one, not {p} and {quantile}")
        given = p if p is not None else quantile
        self.quantile = 0.95 if given is None else given
        self._outlook = Outlook(self.quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends what is cheapest now, and yields a wake-up for the rest."""
        outlook = self._outlook
        outlook.look(view)
        yield from outlook.doomed()
        while view.queues:
            found = plan(outlook, _cost)
            place = next(self._places(view, found), None)
            if place is None:
                break
            yield place
            outlook.look(view)
        yield from outlook.doomed()
        if view.queues and view.open_targets():
            starts_ns = [batch.start_ns for batch in found.batches]
            wake_ns = max(min(starts_ns, default=0), view.now_ns + LOOK_AGAIN_NS)
            yield Wake(wake_ns, "a cheaper target is in time later")

    def _places(self, view: View, found: Plan) -> Iterator[Place]:
        for target in view.open_targets():
            batch = found.next_on(target.spec.id)
            place = _now(batch) if batch else self._stranded(target, found)
            place = place or self._outlook.late_welcome(target)
            if place is not None:
                yield place

    def _stranded(self, target: TargetState, found: Plan) -> Place | None:
        """A batch of requests without a place in the plan."""
        late = {request.id for request in found.late}
        for each in candidates(self._outlook, target) if late else ():
            if late.issuperset(request.id for request in each.batch):
                return each.place("in time here, at any cost")
        return None


def _cost(bid: Bid, offer: Offer, requests: int, execution_ns: int) -> float:
    cost = bid.target.spec.cost(requests, execution_ns, offer.energy(requests))
    return cost + FAILED if bid.failed else cost


def _now(batch: Planned) -> Place:
    """A planned batch, or its first requests if fewer do more in the same time."""
    chosen = tuple(batch.requests[: batch.bid.largest(batch.ladder, len(batch.requests))[1]])
    return Place(batch.bid.target_id, batch.offer, chosen, "the cheapest that is in time")
