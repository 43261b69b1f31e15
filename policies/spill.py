"""`spill`: to remote targets only when the local ones would miss. Wraps any policy.

Rule: the wrapped policy sees and fills the local targets. A request goes to a remote target (one
flagged `remote`) when it would be late locally: when the local queues, played ahead in (priority,
deadline) order, find no place for it in time, or when the wrapped policy would drop it. Of the
remote targets that are in time, the one that costs least is taken, while the budget of the last
hour lasts. What only a busy remote target could finish is kept for it.

Inputs: deadlines, latencies, transfer times, costs, all that is queued; and what the wrapped
policy looks at. Wins with a cloud behind a box: bursts go there, and nothing else. Loses against
`cheapest` where remote targets cost nothing, since it leaves them idle.

Source: Y. Kang et al., "Neurosurgeon", ASPLOS 2017, for when remote work pays; bursting to the
cloud on a predicted miss is common practice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from policies.apart import Apart
from policies.goodput import Goodput
from policies.outlook import Bid, Outlook
from policies.serving import largest
from scheduler.core.policy import Decision, Drop, Place, Policy, View, Wake
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState

HOUR_NS = 3_600_000_000_000


class Spill:
    """Remote targets for what local ones would miss.

    Args:
        inner: The policy that decides about the local targets; `goodput` if none is given.
        budget_per_hour: What may be spent on remote targets in any hour, in the unit of the
            targets' costs; None is no limit. A policy that is swapped in has spent nothing.
        quantile: The share of batches that must be done by the time that is counted on, where
            the inner policy has no `quantile` of its own.
    """

    def __init__(
        self,
        inner: Policy | None = None,
        budget_per_hour: float | None = None,
        quantile: float = 0.95,
    ) -> None:
        """Takes its options from the configuration."""
        if budget_per_hour is not None and budget_per_hour < 0:
            raise ValueError(f"budget_per_hour must be 0 or more, not {budget_per_hour}")
        self.inner = inner or Goodput(quantile)
        self.quantile: float = getattr(self.inner, "quantile", quantile)
        self.budget_per_hour = budget_per_hour
        self.watches_runs: bool = getattr(self.inner, "watches_runs", False)
        self._outlook = Outlook(self.quantile)
        self._local = Apart(self.quantile, _is_local)
        self._spent: deque[tuple[int, float]] = deque()

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends away what would be late here, and asks the inner policy about the rest."""
        outlook, local = self._outlook, self._local
        if local.look(view):
            self._spent.clear()
        outlook.look(view)
        if local.is_all:
            yield from self.inner.decide(local.view)
            return
        yield from outlook.doomed()
        yield from self._spill(local.late())
        for decision in self.inner.decide(local.view):
            if not isinstance(decision, Drop):
                yield decision
                continue
            outlook.look(view)
            place = next(self._spill([decision.request]), None)
            if place is not None:
                yield place
            elif not self._can_wait(decision.request):
                yield decision
        if view.queues and any(target.spec.remote for target in view.open_targets()):
            yield Wake(local.latest_ns(outlook), "what waits is in time on local targets")

    # -- sending away

    def _spill(self, late: list[Request]) -> Iterator[Place]:
        """Batches of late requests for open remote targets, the cheapest first."""
        view = self._outlook.view
        targets = [target for target in view.open_targets() if target.spec.remote]
        # At the same price first where inputs certainly go as they are.
        targets.sort(key=lambda t: (t.spec.cost(1, 1_000_000), bool(t.spec.forms)))
        for target in targets:
            while target.is_open(view.now_ns):
                place = self._batch(target, late)
                if place is None:
                    break
                yield place
                taken = {request.id for request in place.requests}
                late = [request for request in late if request.id not in taken]
                self._outlook.look(view)

    def _batch(self, target: TargetState, late: list[Request]) -> Place | None:
        start_ns = self._outlook.starts_ns[target.spec.id]
        for kind in dict.fromkeys(request.kind for request in late):
            alike = [request for request in late if request.kind == kind]
            for bid in self._remote_bids(kind_of=alike[0]):
                if bid.target is not target:
                    continue
                for offer, ladder in bid.ladders():
                    batch = largest(alike, ladder, start_ns)
                    if batch and self._pays(bid, batch):
                        where = "late on local targets, in time here"
                        return Place(target.spec.id, offer, tuple(batch), where)
        return None

    def _remote_bids(self, kind_of: Request) -> list[Bid]:
        return [bid for bid in self._outlook.bids(kind_of.kind) if bid.target.spec.remote]

    def _pays(self, bid: Bid, batch: list[Request]) -> bool:
        """Spends what a batch costs, if the budget allows."""
        now_ns = self._outlook.view.now_ns
        cost = bid.target.spec.cost(len(batch), bid.one_ns())
        if self._left(now_ns) < cost:
            return False
        self._spent.append((now_ns, cost))
        return True

    def _left(self, now_ns: int) -> float:
        if self.budget_per_hour is None:
            self._spent.clear()
            return float("inf")
        while self._spent and self._spent[0][0] <= now_ns - HOUR_NS:
            self._spent.popleft()
        return self.budget_per_hour - sum([cost for _, cost in self._spent])

    # -- waiting

    def _can_wait(self, request: Request) -> bool:
        """Whether a busy remote target could finish a request in time later."""
        starts_ns = self._outlook.starts_ns
        left = self._left(self._outlook.view.now_ns)
        return any(
            starts_ns[bid.target_id] + bid.one_ns() <= request.deadline_ns
            and bid.target.spec.cost(1, bid.one_ns()) <= left
            for bid in self._remote_bids(request)
        )


def _is_local(target: TargetState) -> bool:
    return not target.spec.remote
