"""`window`: early drop; gives up the head of a queue for a full batch behind it.

Rule: each class has a planned batch size: the largest that takes at most half of its requests'
average budget. An open target takes the class with the most urgent request. A window of the planned
size (smaller if fewer are queued) slides over the queue to the first position where all requests in
it would be in time. The requests it slid past are dropped, unless another target could finish them.
Serving them instead, in ever smaller batches, would lose more.

Inputs: deadlines, latencies, past budgets. Wins under overload where batching pays, with one class
or similar classes: it keeps batches full. Loses below capacity, where it drops requests that a
smaller batch could have saved, and with mixed budgets or weights.

Source: H. Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis",
SOSP 2019, section 4.3 (early drop).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from policies.parts.outlook import Outlook
from policies.parts.serving import order
from scheduler.core.latency import Ladder
from scheduler.core.policy import Decision, Drop, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState

MEMORY = 0.05
"""The weight of the newest budget in the moving average."""

_KEPT = 1_000
"""The most classes whose budgets are remembered."""


class Window:
    """Nexus' early drop.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
        batch_share: The share of a budget that a batch may take.
    """

    def __init__(self, quantile: float = 0.95, batch_share: float = 0.5) -> None:
        """Takes its options from the configuration."""
        if not 0 < batch_share <= 1:
            raise ValueError(f"batch_share must be above 0 and at most 1, not {batch_share}")
        self.quantile = quantile
        self.batch_share = batch_share
        self._outlook = Outlook(quantile)
        self._view: View | None = None
        self._budgets_ns: dict[RequestClass, float] = {}

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, and drops the requests that the windows slid past."""
        outlook = self._outlook
        self._remember(view)
        outlook.look(view)
        yield from outlook.doomed()
        for target in outlook.open_targets():
            while target.is_open(view.now_ns):
                found = self._slide(target)
                place = found[0] if found else outlook.late_welcome(target)
                if place is None:
                    break
                yield place
                outlook.look(view)
                yield from self._passed(found[1] if found else [], target)
        yield from outlook.doomed()
        yield from outlook.second_tries()

    def _remember(self, view: View) -> None:
        if self._view is not view or len(self._budgets_ns) > _KEPT:
            self._view = view
            self._budgets_ns.clear()
        for request in view.arrivals:
            budget_ns = request.deadline_ns - view.now_ns
            known_ns = self._budgets_ns.get(request.kind, budget_ns)
            self._budgets_ns[request.kind] = known_ns + MEMORY * (budget_ns - known_ns)

    def _slide(self, target: TargetState) -> tuple[Place, list[Request]] | None:
        """The next batch for a target, and the requests that the window slid past."""
        waiting = self._outlook.waiting(target)
        waiting.sort(key=lambda found: order(found[0].head()))
        start_ns = self._outlook.starts_ns[target.spec.id]
        for queue, bid in waiting:
            for offer, ladder in bid.ladders():
                for rung in range(self._planned(queue, ladder), -1, -1):
                    done_ns = start_ns + bid.takes_ns(ladder, rung, len(queue))
                    batch = queue.first(ladder.sizes[rung], done_ns)
                    if bid.pays(ladder, rung, len(batch)):
                        reason = f"the first window of {len(batch)} that is in time"
                        place = Place(target.spec.id, offer, tuple(batch), reason)
                        last = order(batch[-1])
                        passed = [r for r in queue.due(done_ns) if order(r) < last]
                        return place, passed
        return None

    def _planned(self, queue: ClassQueue, ladder: Ladder) -> int:
        """The index of the planned batch size, or of a smaller one that has room for the queue."""
        budget_ns = self._budgets_ns.get(queue.kind, 0.0)
        planned = bisect_right(ladder.latency_ns, budget_ns * self.batch_share)
        return max(0, min(planned - 1, bisect_left(ladder.sizes, len(queue))))

    def _passed(self, passed: list[Request], target: TargetState) -> Iterator[Drop]:
        outlook = self._outlook
        for request in passed:
            if not request.accept_late and all(
                outlook.done_ns(bid) > request.deadline_ns
                for bid in outlook.bids(request.kind)
                if bid.target is not target
            ):
                why = "given up for a full batch behind it"
                yield Drop(request, why, outlook.budgets_ns(request.kind))
