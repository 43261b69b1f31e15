"""Some targets only for requests that the others would miss: shared by `spill` and `goodput`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from policies.parts.apart import Apart
from policies.parts.buying import Affords, batch_price, price, purchases
from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import order, some_open
from scheduler.core.policy import Decision, Drop, Place, Policy, View, Wake, decisions_of
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


class Away:
    """Runs a policy on the near targets alone, and uses the far ones for what would be late there.

    Args:
        inner: Decides about the near targets.
        quantile: The latency quantile to rely on, from 0 to 1.
        is_near: Whether a target is near.
        affords: Whether a batch of this cost may be sent; the batch is sent if the answer is yes.
        covers: Whether the budget covers a cost, without spending it.

    Attributes:
        near: The near targets.
    """

    def __init__(
        self,
        inner: Policy,
        quantile: float,
        is_near: Callable[[TargetState], bool],
        affords: Affords = lambda _cost: True,
        covers: Affords = lambda _cost: True,
    ) -> None:
        """Starts before its first look."""
        self.near = Apart(quantile, is_near)
        self._inner = inner
        self._is_near = is_near
        self._affords, self._covers = affords, covers
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends away requests that would be late here, and asks the inner policy about the rest."""
        outlook, near = self._outlook, self.near
        near.look(view)
        outlook.look(view)
        if near.is_all:
            yield from decisions_of(self._inner, near.view)
            return
        yield from outlook.doomed()
        if some_open(view, self._is_far):
            yield from self._send_late()
            yield from self._late_welcome()
        for decision in decisions_of(self._inner, near.view):
            if not isinstance(decision, Drop):
                yield decision
                continue
            outlook.look(view)
            place = next(self._send([decision.request], self._is_far), None)
            if place is not None:
                yield place
            elif not self._can_wait(decision.request):
                yield decision
        if view.queues and some_open(view, self._is_far):
            wake_ns = near.latest_ns(outlook)
            if wake_ns is not None:
                yield Wake(wake_ns, "nearer targets will finish what is queued in time")

    def _send_late(self) -> Iterator[Place]:
        """Sends what would be late here, and what the inner policy would rather leave out."""
        late, cramping = self.near.late(), self.near.cramping()
        if cramping:
            yield from self._send(sorted(late + cramping, key=order), self._has_leisure)
            late = self.near.late()
        yield from self._send(late, self._is_far)

    def _send(
        self, requests: list[Request], takes: Callable[[TargetState], bool]
    ) -> Iterator[Place]:
        """Batches for open far targets of a kind, the cheapest first."""
        reason = "late on nearer targets, in time here"
        return purchases(self._outlook, requests, takes, reason, self._affords)

    def _late_welcome(self) -> Iterator[Place]:
        """Requests that may be late, of a kind that only far targets serve."""
        outlook = self._outlook
        if not outlook.overdue():
            return
        for target in filter(self._is_far, outlook.view.open_targets()):
            place = outlook.late_welcome(target)
            if place is None:
                continue
            bids = outlook.bids(place.requests[0].kind)
            if any(self._is_near(bid.target) for bid in bids):
                continue
            bid = next(bid for bid in bids if bid.target is target)
            if self._affords(batch_price(bid, 0, len(place.requests))):
                yield place
                outlook.look(outlook.view)

    def _can_wait(self, request: Request) -> bool:
        """Whether a far target could finish a request in time, perhaps later when it is free."""
        return any(
            self._outlook.done_ns(bid) <= request.deadline_ns and self._covers(price(bid))
            for bid in self._far_bids(request)
        )

    def _far_bids(self, request: Request) -> list[Bid]:
        return [bid for bid in self._outlook.bids(request.kind) if self._is_far(bid.target)]

    def _has_leisure(self, target: TargetState) -> bool:
        """Whether a far target takes what keeps batches small: on a busy box it would again."""
        spec = target.spec
        return self._is_far(target) and not (spec.peer and 2 * len(target.runs) >= spec.slots)

    def _is_far(self, target: TargetState) -> bool:
        return not self._is_near(target)
