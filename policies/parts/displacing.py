"""What a request would make others late that come, and are worth more: it is refused.

One item of 160 ms can cost ten of 2 ms their deadlines. So a run of length s on a target can be
expected to lose its share of what is late behind such a run (`parts.coming`): that target's part of
the rate at which all serve what comes. Only what costs less per weight than the request, and is not
less important, counts.

Where that is more than the request is worth, it is to leave room for all of it: what is cheaper may
need a share of what the targets can do that no long run has taken, and no more. So of several
targets some run what is long and the others what is short. A request for which there never is such
a room, as on a box with one device, is refused.

Source: in a system that loses whom it can't serve at once a job is to be taken if it earns at least
what the time that it needs earns otherwise: B. L. Miller, "A queueing reward system with several
customer classes", Management Science 16(3), 1969; S. A. Lippman, S. M. Ross, "The streetwalker's
dilemma: a job shop model", SIAM Journal on Applied Mathematics 20(3), 1971. Here some can wait.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from policies.parts.admission import Admission
from policies.parts.coming import Alike, Coming
from policies.parts.outlook import Bid, Outlook
from scheduler.core.policy import Drop
from scheduler.core.requests import Request
from scheduler.core.sizes import step_of

FIT = 0.3
"""What is cheaper has room where it needs at most this share of the targets that are left to it: it
is to be served within little more than it takes. With more of what is long less is in time."""

_first = itemgetter(0)


class Displacement:
    """Refuses what would make others late that are worth more.

    Args:
        outlook: What the targets could do.
        admission: Knows what each class costs.
        coming: What came lately.
    """

    def __init__(self, outlook: Outlook, admission: Admission, coming: Coming) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming

    def refusal(self, request: Request) -> Drop | None:
        """The reason to refuse a queued arrival; without a budget, for none would do.

        Returns:
            None when it is admitted.
        """
        pace = self._admission.pace(request.kind)
        if pace.longest_ns <= self._coming.least_slack_ns:
            return None
        cheaper = self._cheaper(request.priority, pace.cost_ns / request.weight)
        if not cheaper:
            return None
        bids = self._outlook.bids(request.kind)
        if self._outlook.some_dear and any(bid.target.spec.is_dear for bid in bids):
            return None  # somebody can be paid for it: there is room elsewhere
        for bid in bids:
            in_time = self._outlook.view.now_ns + bid.one_ns() <= request.deadline_ns
            if in_time and self._fits(cheaper, bid.target_id):
                return None
        _, bid = min([(self._outlook.done_ns(bid), bid) for bid in bids], key=_first)
        ladder = bid.curves[0].ladder(0.5)
        rung = bisect_right(ladder.sizes, len(self._outlook.view.queues[request.kind])) - 1
        length_ns = ladder.latency_ns[rung]
        lost = self._lost(cheaper, bid, length_ns) / ladder.sizes[rung]
        if lost <= request.weight:
            return None
        why = (
            f"would take {length_ns / 1e6:.1f} ms, in which others of weight {lost:.1f} would be "
            f"late; its own is {request.weight:g}"
        )
        return Drop(request, why, {})

    def _cheaper(self, priority: int, cost_ns: float) -> list[Alike]:
        """What costs less per weight and is not less important."""
        step = step_of(int(cost_ns))
        groups = self._coming.groups
        return [each for each in groups if each.step < step and each.priority <= priority]

    def _lost(self, others: list[Alike], bid: Bid, length_ns: int) -> float:
        """What is lost behind a run of a length on a target, as so much weight of its requests."""
        at = bid.target_id
        lost = sum([self._share(each, at) * each.lost(length_ns) for each in others])
        return lost / self._coming.since_ns() / self._coming.odds(bid)

    def _share(self, alike: Alike, target_id: str) -> float:
        """The part of a target in the rate at which what is alike is served."""
        if target_id not in alike.target_ids:
            return 0.0
        return self._admission.pace(alike.kind).parts().get(target_id, 0.0)

    def _fits(self, cheaper: list[Alike], own_id: str) -> bool:
        """Whether what is cheaper has room beside one more run on a target."""
        room, work_ns = 1.0, 0.0
        for each in cheaper:
            if own_id in each.target_ids:
                work_ns += each.work_ns
                pace = self._admission.pace(each.kind)
                parts = pace.parts()
                left = 0.0
                for bid in pace.bids:
                    lanes = bid.target.spec.width - (bid.target_id == own_id)
                    left += lanes * parts[bid.target_id]
                room = min(room, left)
        return work_ns <= FIT * room * self._coming.since_ns()
