"""Early binding: requests are assigned to a target on arrival and wait for it; for baselines.

A common dispatcher binds early: on arrival it chooses where each request runs, by a simple rule.
Each target serves the requests assigned to it in (priority, deadline, id) order, in the largest
batch that keeps the first one in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from policies.parts.outlook import Bid, Outlook, late_by
from policies.parts.serving import LOOK_AGAIN_NS, order
from scheduler.core.latency import Ladder
from scheduler.core.policy import Decision, Drop, Place, View, Wake
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState

Choose = Callable[[Request, list[Bid], "Binding"], Bid]
"""Chooses the target for a new request, among those that could finish it in time or, if none could,
among all that have its model."""


@dataclass(slots=True)
class _Given:
    """The requests assigned to one target that wait for it, in order of service."""

    requests: list[Request] = field(default_factory=list)
    work_ns: float = 0.0


class Binding:
    """Assigns requests to targets, and serves each target's own.

    A decision takes time in proportion to what is queued, since these rules are only for
    comparison.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
        choose: The rule that assigns.
        reason: The reason given for each placement.

    Attributes:
        outlook: What the targets could do for each class.
    """

    def __init__(self, quantile: float, choose: Choose, reason: str) -> None:
        """Starts with nothing assigned."""
        self.outlook = Outlook(quantile)
        self._choose = choose
        self._reason = reason
        self._view: View | None = None
        self._bound: dict[int, str] = {}
        self._given: dict[str, _Given] = {}

    def is_new(self, view: View) -> bool:
        """Whether a different scheduler asks than before, so that everything learned is void."""
        return self._view is not view

    def waiting_ns(self, bid: Bid) -> float:
        """How long the work assigned to a target and waiting for it takes."""
        return self._given[bid.target_id].work_ns

    def decide(self, view: View) -> Iterator[Decision]:
        """Assigns new requests, and lets open targets serve those assigned to them."""
        if self.is_new(view):
            self._view = view
            self._bound.clear()
        self.outlook.look(view)
        yield from self.outlook.doomed()
        yield from self._give(view)
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._serve(target) or self.outlook.late_welcome(target)
                if place is None:
                    break
                yield place
                self._take(place)
                self.outlook.look(view)
        yield from self._wait(view)

    # -- giving

    def _give(self, view: View) -> Iterator[Drop]:
        """Assigns each request without a target, and drops those that their target can't finish."""
        outlook = self.outlook
        bound: dict[int, str] = {}
        self._given = {target_id: _Given() for target_id in outlook.starts_ns}
        fresh = []
        for kind, queue in view.queues.items():
            bids = {bid.target_id: bid for bid in outlook.bids(kind)}
            for request in queue:
                bid = bids.get(self._bound.get(request.id, ""))
                if bid is None:
                    fresh.append(request)
                else:
                    self._note(bid, request, bound)
        fresh.sort(key=lambda request: request.id)
        self._bound = bound
        for request in fresh:
            bids_now = self._able(request)
            if bids_now:
                self._note(self._choose(request, bids_now, self), request, bound)
        for target_id, given in self._given.items():
            given.requests.sort(key=order)
            yield from self._lost(target_id, given)

    def _able(self, request: Request) -> list[Bid]:
        bids = self.outlook.bids(request.kind)
        able = [bid for bid in bids if self.outlook.done_ns(bid) <= request.deadline_ns] or bids
        return [bid for bid in able if not bid.failed] or able

    def _note(self, bid: Bid, request: Request, bound: dict[int, str]) -> None:
        bound[request.id] = bid.target_id
        given = self._given[bid.target_id]
        given.requests.append(request)
        given.work_ns += 1 / bid.curves[0].ladder(0.5).rate[-1]

    def _lost(self, target_id: str, given: _Given) -> Iterator[Drop]:
        start_ns = self.outlook.starts_ns[target_id]
        left = []
        for request in given.requests:
            bid = self._bid(request, self.outlook.view.targets[target_id])
            late_ns = start_ns + bid.one_ns() - request.deadline_ns
            if late_ns <= 0 or request.accept_late:
                left.append(request)
            else:
                why = f"would be {late_by(late_ns)} on {target_id}, where it was sent"
                now_ns = self.outlook.view.now_ns
                yield Drop(request, why, {target_id: request.deadline_ns + late_ns - now_ns})
        given.requests = left

    # -- serving

    def _serve(self, target: TargetState) -> Place | None:
        given = self._given[target.spec.id]
        start_ns = self.outlook.starts_ns[target.spec.id]
        late: Request | None = None
        for head in given.requests:
            bid = self._bid(head, target)
            for offer, ladder in bid.ladders():
                if start_ns + ladder.latency_ns[0] <= head.deadline_ns:
                    alike = [r for r in given.requests if r.kind == head.kind]
                    batch = _largest(head, alike, bid, ladder, start_ns)
                    return Place(target.spec.id, offer, tuple(batch), self._reason)
            late = late or (head if head.accept_late else None)
        if late is None:
            return None
        offer = self._bid(late, target).offers[0]
        return Place(target.spec.id, offer, (late,), "late, as the caller allows")

    def _bid(self, request: Request, target: TargetState) -> Bid:
        return next(b for b in self.outlook.bids(request.kind) if b.target is target)

    def _take(self, place: Place) -> None:
        taken = {request.id for request in place.requests}
        for given in self._given.values():
            given.requests = [r for r in given.requests if r.id not in taken]

    def _wait(self, view: View) -> Iterator[Wake]:
        """Yields a wake-up if open targets idle while requests wait for busy ones."""
        waits_ns = [
            max(self.outlook.starts_ns[target_id], view.now_ns + LOOK_AGAIN_NS)
            for target_id, given in self._given.items()
            if given.requests
        ]
        if waits_ns and view.open_targets():
            yield Wake(min(waits_ns), "what is queued is assigned to busy targets")


def _largest(
    head: Request, alike: list[Request], bid: Bid, ladder: Ladder, start_ns: int
) -> list[Request]:
    """The largest batch that includes `head` and keeps it in time."""
    chosen = [head]
    for at in range(len(ladder.sizes)):
        done_ns = start_ns + bid.takes_ns(ladder, at, len(alike))
        if done_ns > head.deadline_ns:
            break
        others = [r for r in alike if r is not head and r.deadline_ns >= done_ns]
        batch = [head, *others][: ladder.sizes[at]]
        if bid.pays(ladder, at, len(batch)):
            chosen = batch
    return chosen
