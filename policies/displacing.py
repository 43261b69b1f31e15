"""What a request would make others late: one that would cost more than it is worth is refused.

A batch runs to its end. What comes meanwhile and has little time is lost, however cheap it would
have been: one item of 160 ms can cost ten of 2 ms their deadlines. Of what came lately it is known
how long each could have waited, what it was worth, and what it cost. So a run of length s on one of
the targets that serve a class can be expected to lose

    share * sum over what came of  max(0, s - slack) * max(0, weight - worth per time * cost)

per time in which it came. `share` is that target's part of the rate at which they serve the class.
What is finished instead is worth something as well: that much per time of all targets, so of what
costs as much as it is worth nothing is lost. Only what costs less per weight than the request, and
is not less important, counts.

Source: in a system that loses whom it can't serve at once a job is to be taken if it earns at least
what the time that it needs earns otherwise: B. L. Miller, "A queueing reward system with several
customer classes", Management Science 16(3), 1969; S. A. Lippman, S. M. Ross, "The streetwalker's
dilemma: a job shop model", SIAM Journal on Applied Mathematics 20(3), 1971. Here some can wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from policies.admission import Admission
from policies.outlook import Bid, Outlook
from scheduler.core.policy import Drop, Place, View
from scheduler.core.requests import Request
from scheduler.core.sizes import step_of

RECENT = 256
"""So many requests say what comes."""

LEAST = 16
"""Fewer say nothing."""

PART = 4
"""What came is counted anew after a part of it is new."""

_ANY_NS = 1 << 62

_first = itemgetter(0)

_Came = tuple[int, int, float, float, tuple[int, int], float]
"""When one came that could be in time by itself, how long it could wait, its weight, its cost, its
priority with the step of its cost per weight, and what had been served before."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """What is lost behind a run, of one priority and cost.

    Attributes:
        slack_ns: How long each could have waited, ascending.
        worth: What so many of the first of them were worth beyond what they cost.
        slack_worth: The same, each times its slack.
    """

    slack_ns: list[int]
    worth: list[float]
    slack_worth: list[float]

    def of(self, length_ns: int) -> float:
        """Behind a run of a length, times the time in which they came."""
        count = bisect_right(self.slack_ns, length_ns)
        return length_ns * self.worth[count] - self.slack_worth[count]


class Displacement:
    """Refuses what would make others late that are worth more.

    Args:
        outlook: What the targets could do.
        admission: Knows what each class costs.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Has seen nothing come."""
        self._outlook = outlook
        self._admission = admission
        self._view: View | None = None
        self._forget()

    def _forget(self) -> None:
        self._came: deque[_Came] = deque(maxlen=RECENT)
        self._uncounted = 0
        self._losses: dict[tuple[int, int], _Loss] = {}
        self._cheapest, self._least_slack_ns = 0, _ANY_NS
        self._worth = 0.0

    def served(self, place: Place) -> None:
        """A batch is sent, with which its requests are in time."""
        self._worth += sum([request.weight for request in place.requests])

    def look(self) -> None:
        """Counts what came before; to be called at each event."""
        view = self._outlook.view
        if view is not self._view:
            self._view = view
            self._forget()
        if self._uncounted >= LEAST and self._uncounted * PART >= len(self._came):
            self._count(view.now_ns)  # what came together may have been served by now

    def came(self, request: Request) -> None:
        """A request has come; to be called after admission has looked at it."""
        now_ns, kind, weight = self._outlook.view.now_ns, request.kind, request.weight
        slack_ns = request.deadline_ns - now_ns - self._outlook.least_ns(kind)
        cost_ns = self._admission.pace(kind).cost_ns
        if slack_ns >= 0 and cost_ns:
            alike = request.priority, step_of(int(cost_ns / weight))
            self._came.append((now_ns, slack_ns, weight, cost_ns, alike, self._worth))
            self._uncounted += 1

    def _count(self, now_ns: int) -> None:
        self._uncounted = 0
        first_ns, *_, worth = self._came[0]
        worth_per_ns = (self._worth - worth) / max(1, now_ns - first_ns)
        found: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for _, slack_ns, weight, cost_ns, alike, _ in self._came:
            net = weight - worth_per_ns * cost_ns
            if net > 0:
                found.setdefault(alike, []).append((slack_ns, net))
        self._losses = {alike: _loss(pairs) for alike, pairs in found.items()}
        self._cheapest = min([step for _, step in self._losses], default=0)
        slacks = [lost.slack_ns[0] for lost in self._losses.values()]
        self._least_slack_ns = min(slacks, default=_ANY_NS)

    def refusal(self, request: Request) -> Drop | None:
        """The reason to refuse a queued arrival; without a budget, for none would do.

        Returns:
            None when it is admitted.
        """
        pace = self._admission.pace(request.kind)
        if pace.longest_ns <= self._least_slack_ns:
            return None
        step = step_of(int(pace.cost_ns / request.weight))
        if step <= self._cheapest:
            return None
        bids = self._outlook.bids(request.kind)
        if self._outlook.some_dear and any(bid.target.spec.is_dear for bid in bids):
            return None  # who pays has room elsewhere
        _, bid = min([(self._outlook.done_ns(bid), bid) for bid in bids], key=_first)
        ladder = bid.curves[0].ladder(0.5)
        rung = bisect_right(ladder.sizes, len(self._outlook.view.queues[request.kind])) - 1
        length_ns = ladder.latency_ns[rung]
        loss = 0.0
        for (priority, cheaper), lost in self._losses.items():
            if priority <= request.priority and cheaper < step:
                loss += lost.of(length_ns)
        since_ns = max(1, self._outlook.view.now_ns - self._came[0][0])
        loss *= _share(bid, bids) / since_ns / ladder.sizes[rung]
        if loss <= request.weight:
            return None
        why = (
            f"would take {length_ns / 1e6:.1f} ms, in which others of weight {loss:.1f} would be "
            f"late; its own is {request.weight:g}"
        )
        return Drop(request, why, {})


def _share(bid: Bid, bids: list[Bid]) -> float:
    """The part of one batch at a time there in the rate at which all serve the class."""
    return 1 / sum([each.target.spec.width * bid.one_ns() / each.one_ns() for each in bids])


def _loss(pairs: list[tuple[int, float]]) -> _Loss:
    """What of some requests is lost, by how long each could wait and what it was worth."""
    pairs.sort()
    return _Loss(
        [slack_ns for slack_ns, _ in pairs],
        list(accumulate([net for _, net in pairs], initial=0.0)),
        list(accumulate([slack_ns * net for slack_ns, net in pairs], initial=0.0)),
    )
