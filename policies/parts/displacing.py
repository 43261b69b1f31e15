"""Refuses requests that would make future arrivals late that are worth more.

One item of 160 ms can make ten items of 2 ms miss their deadlines. The expected loss from a run of
length s on a target is that target's share of the loss behind such a run (`parts.coming`), in
proportion to its part of the rate at which all targets serve the arrivals. Only arrivals that cost
less per weight than the request, and have at least its priority, count. If they need a share rho of
the target's time, what waits behind the run delays as much again times rho, and so on: all in all
1 / (1 - rho) times the run. The loss is multiplied by the first two terms of that, 1 + rho, because
what is lost delays nobody. A batch shares its loss among its requests. The variant and the size
with the least loss for each count, of the batches that are filled by what is queued and what is
expected to come while the request can wait.

If that loss exceeds the request's worth, the request is still admitted if it may run on a target
beside which there is enough room for the cheaper arrivals: they are then late only if they wait too
long for the other targets. So some targets run the long requests and others the short ones. If
there is no such room, as on a box with one device, the request is refused.

With a load rho of the room that is left, a share rho of arrivals waits, for a mean time of
r / (1 - rho), where r is half the mean length of the run that they meet, times the unevenness of
the arrivals; waits are taken to be exponential.

Source: a loss system, which loses customers that it can't serve at once, should accept a job if it
earns at least what its time would earn otherwise: B. L. Miller, "A queueing reward system with
several customer classes", Management Science 16(3), 1969; S. A. Lippman, S. M. Ross, "The
streetwalker's dilemma: a job shop model", SIAM Journal on Applied Mathematics 20(3), 1971. Here
some requests can wait. That waits are exponential, and how unevenness lengthens them: J. F. C.
Kingman, "The single server queue in heavy traffic", Mathematical Proceedings of the Cambridge
Philosophical Society 57(4), 1961.
"""

from __future__ import annotations

from math import fsum, inf
from operator import itemgetter

from policies.parts.admission import Admission
from policies.parts.coming import Alike, Coming
from policies.parts.outlook import Bid, Outlook
from scheduler.core.policy import Drop
from scheduler.core.requests import Request

FULL = 0.95
"""With a higher load than this there is no room."""

_first = itemgetter(0)


class Displacement:
    """Refuses requests that would make others late that are worth more.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class.
        coming: The recent arrivals.
    """

    def __init__(self, outlook: Outlook, admission: Admission, coming: Coming) -> None:
        self._outlook = outlook
        self._admission = admission
        self._coming = coming

    def refusal(self, request: Request) -> Drop | None:
        """Decides whether to refuse a queued arrival.

        Returns:
            The refusal, without a counter-offer, since no budget would do; None if it is admitted.
        """
        pace = self._admission.pace(request.kind)
        if pace.longest_ns <= self._coming.least_slack_ns:
            return None
        cheaper = self._cheaper(request.priority, pace.step(request.weight), pace.longest_ns)
        if not cheaper:
            return None
        bids = self._outlook.bids(request.kind)
        if self._outlook.some_dear and any(bid.target.spec.is_dear for bid in bids):
            return None  # a costly target can do it
        for bid in bids:
            in_time = self._outlook.view.now_ns + bid.alone_ns() <= request.deadline_ns
            if in_time and self._lost_beside(cheaper, bid) <= request.weight:
                return None
        _, bid = min([(self._outlook.done_ns(bid), bid) for bid in bids], key=_first)
        slack_ns = request.deadline_ns - self._outlook.done_ns(bid)
        lost, length_ns = self._least_lost(cheaper, bid, slack_ns)
        if lost <= request.weight:
            return None
        why = (
            f"would take {length_ns / 1e6:.1f} ms, behind which others of weight {lost:.1f} would "
            f"be late; its own is {request.weight:g}"
        )
        return Drop(request, why, {})

    def _cheaper(self, priority: int, step: int, run_ns: float) -> list[Alike]:
        """The groups that cost less per weight, are as important, and may arrive during a run."""
        now_ns = self._outlook.view.now_ns
        return [
            each
            for each in self._coming.groups
            if each.step < step and each.priority <= priority and each.quiet_ns(now_ns) < run_ns
        ]

    def _least_lost(self, others: list[Alike], bid: Bid, slack_ns: int) -> tuple[float, int]:
        """The least loss per request behind a run of its class on a target, and the run's length.

        It counts the variant and the batch with the least loss, of those that pay for what is
        queued and what comes while the request can wait.

        Args:
            others: The groups that could be lost.
            bid: What the target offers to the class.
            slack_ns: How long the request can wait.
        """
        company = self._coming.expected(bid.kind, slack_ns)
        waiting = len(self._outlook.view.queues[bid.kind]) + int(company)
        least = inf, 0
        for curve in bid.curves:
            ladder = curve.ladder(0.5)
            for at in range(ladder.largest(waiting)[0] + 1):
                length_ns = ladder.latency_ns[at]
                lost = self._lost(others, bid, length_ns) / min(ladder.sizes[at], waiting)
                if lost < least[0]:
                    least = lost, length_ns
        return least

    def _lost(self, others: list[Alike], bid: Bid, length_ns: int) -> float:
        """The loss behind a run of a length on a target, in units of its requests' weight.

        What is not lost waits behind the run, and delays what arrives after that.
        """
        since_ns = self._coming.since_ns()
        lost = load = 0.0
        for each in others:
            share = self._share(each, bid.target_id)
            lost += share * each.lost(length_ns) / since_ns
            load += share * each.work_ns / since_ns
        return (1.0 + load) * lost / self._coming.odds(bid)

    def _share(self, alike: Alike, target_id: str) -> float:
        """A target's part of the rate at which a group is served."""
        if target_id not in alike.target_ids:
            return 0.0
        return self._admission.pace(alike.kind).parts().get(target_id, 0.0)

    def _lost_beside(self, cheaper: list[Alike], own: Bid) -> float:
        """The loss on other targets while a target runs one more long request.

        Args:
            cheaper: The groups that could be lost.
            own: What the target offers to the long request.
        """
        sharing = [each for each in cheaper if own.target_id in each.target_ids]
        work_ns = fsum([each.work_ns for each in sharing])
        if not work_ns:
            return 0.0
        room = min([self._room(each, own.target_id) for each in sharing])
        since_ns = self._coming.since_ns()
        if work_ns >= FULL * room * since_ns:
            return inf
        load = work_ns / (room * since_ns)
        runs = fsum([each.work_ns * self._admission.pace(each.kind).least_ns for each in sharing])
        wait_ns = self._coming.uneven * runs / work_ns / 2 / (1.0 - load)
        late = fsum([each.late(wait_ns) for each in sharing])
        return load * late * own.one_ns() / since_ns / self._coming.odds(own)

    def _room(self, alike: Alike, own_id: str) -> float:
        """The part of the rate at which a group is served that is left beside a run on a target."""
        pace = self._admission.pace(alike.kind)
        parts = pace.parts()
        left = 0.0
        for bid in pace.bids:
            lanes = bid.target.spec.width - (bid.target_id == own_id)
            left += lanes * parts[bid.target_id]
        return left
