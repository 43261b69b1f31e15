"""What came lately, and so what may come: how long it could wait, its worth, its cost.

A batch runs to its end. What comes meanwhile and has little time is late behind it, however cheap
it would have been. Behind a run of length s can be expected to be late

    sum over what came of  max(0, s - slack) * max(0, weight - worth per time * cost)

per time in which it came. What is finished instead is worth something as well: that much per time
of all targets, so of what costs as much as it is worth nothing is lost. Weights count as far as
each would be in time (`parts.odds`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from itertools import accumulate, pairwise
from operator import mul

from policies.parts.admission import Admission
from policies.parts.outlook import Bid, Outlook
from scheduler.core.policy import Place
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import step_of

RECENT = 256
"""So many requests say what comes."""

LEAST = 16
"""Fewer say nothing."""

PART = 2
"""What came is counted anew after a part of it is new."""

RARE = 0.1
"""Classes that are together no more than such a share do not count as others."""

_ANY_NS = 1 << 62

_Shared = tuple[int, int, frozenset[str]]
"""A priority, the step of a cost per weight, and who serves what has them."""


_Each = tuple[int, float, float]
"""How long one could have waited, its worth beyond its cost, and its cost."""

_Sums = tuple[tuple[int, ...], list[float], list[float]]
"""How long each of several could have waited, ascending; of so many of them the worth beyond their
cost, and the same times how long they could have waited."""


class Alike:
    """Requests of one priority and cost, for the same targets, that came lately.

    Args:
        priority: Theirs.
        step: The step of their cost per weight.
        target_ids: Who serves them.

    Attributes:
        kind: The class of the last of them.
        work_ns: The time of all targets together that they needed.
    """

    kind: RequestClass

    def __init__(self, priority: int, step: int, target_ids: frozenset[str]) -> None:
        self.priority = priority
        self.step = step
        self.target_ids = target_ids
        self.work_ns = 0.0
        self._came: list[_Each] = []
        self._sums: _Sums | None = None

    def count(self, came: list[_Each]) -> None:
        """Takes in those that came lately."""
        self.work_ns = sum([cost_ns for _, _, cost_ns in came])
        self._came = came
        self._sums = None

    def lost(self, length_ns: float) -> float:
        """What is lost behind a run of a length, times the time in which they came."""
        slack_ns, worth, slack_worth = self._added_up()
        count = bisect_right(slack_ns, length_ns)
        return length_ns * worth[count] - slack_worth[count]

    def _added_up(self) -> _Sums:
        """Where no run is as long as anybody could wait, nobody asks."""
        if self._sums is None:
            self._came.sort()
            slack_ns, worth, _ = zip(*self._came, strict=True)
            slack_worth = accumulate(map(mul, slack_ns, worth), initial=0.0)
            self._sums = slack_ns, list(accumulate(worth, initial=0.0)), list(slack_worth)
        return self._sums


_Came = tuple[int, int, float, float, Alike, float, RequestClass]
"""When one came that could be in time by itself, how long it could wait, its weight times its odds,
its cost, who is like it, what had been served before, and its class."""


class Coming:
    """What came lately.

    Args:
        outlook: What the targets could do.
        admission: Knows what each class costs.

    Attributes:
        groups: Those that are alike, together.
        least_slack_ns: Behind a run that isn't longer than that nobody is late, on any target.
        is_one: Whether all of it is of one class, but for what is rare.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Has seen nothing come."""
        self.groups: list[Alike] = []
        self.is_one = False
        self.least_slack_ns = _ANY_NS
        self._outlook = outlook
        self._admission = admission
        self._came: deque[_Came] = deque(maxlen=RECENT)
        self._uncounted = 0
        self._known: dict[_Shared, Alike] = {}
        self._came_ns: list[int] = []
        self._gaps_ns: list[int] = []
        self._sums_ns: list[int] = [0]
        self._worth = 0.0

    def served(self, place: Place) -> None:
        """A batch is sent, with which its requests are in time."""
        weight = sum([request.weight for request in place.requests])
        self._worth += weight * self.odds(self._outlook.bids(place.requests[0].kind)[0])

    def look(self) -> None:
        """Counts what came before; to be called at each event."""
        if self._uncounted >= LEAST and self._uncounted * PART >= len(self._came):
            self._count(self._outlook.view.now_ns)  # what came together may have been served by now

    def came(self, request: Request) -> None:
        """A request has come; to be called after admission has looked at it."""
        now_ns, kind, weight = self._outlook.view.now_ns, request.kind, request.weight
        pace = self._admission.pace(kind)
        slack_ns, cost_ns = request.deadline_ns - now_ns - pace.least_ns, pace.cost_ns
        if slack_ns >= 0 and cost_ns:
            shared = request.priority, step_of(int(cost_ns / weight)), pace.target_ids
            alike = self._known.get(shared)
            if alike is None:
                alike = self._known[shared] = Alike(*shared)
            alike.kind = kind
            worth = weight * self.odds(pace.bids[0])
            self._came.append((now_ns, slack_ns, worth, cost_ns, alike, self._worth, kind))
            self._uncounted += 1

    def _count(self, now_ns: int) -> None:
        self._uncounted = 0
        first_ns, *_, worth, _ = self._came[0]
        worth_per_ns = (self._worth - worth) / max(1, now_ns - first_ns)
        groups: defaultdict[Alike, list[_Each]] = defaultdict(list)
        kinds = []
        least_ns = _ANY_NS
        for _, slack_ns, worth, cost_ns, alike, _, kind in self._came:
            net = worth - worth_per_ns * cost_ns
            groups[alike].append((slack_ns, net if net > 0.0 else 0.0, cost_ns))
            kinds.append(kind)
            if slack_ns < least_ns:
                least_ns = slack_ns
        self.groups = list(groups)
        # Who is nearly all of them is among a few.
        most = max([kinds.count(kind) for kind in set(kinds[:: len(kinds) // 4])])
        self.is_one = most >= (1.0 - RARE) * len(kinds)
        self._known = {(each.priority, each.step, each.target_ids): each for each in groups}
        for each, came in groups.items():
            each.count(came)
        unlike_ns = max([self._admission.pace(each.kind).unlike_ns for each in groups])
        self.least_slack_ns = least_ns - unlike_ns
        self._came_ns = [each[0] for each in self._came]
        self._gaps_ns = []

    def since_ns(self) -> int:
        """In how much time all of that came."""
        return max(1, self._outlook.view.now_ns - self._came[0][0])

    def lull_ns(self) -> float:
        """How much later than usual the next one is expected, by how long none has come.

        Of the gaps between those that came only such count as were longer. Where each comes by
        itself that says nothing; after the last of a bunch it is long until the next bunch.
        """
        if not self._gaps_ns:  # where no run is as long as anybody could wait, nobody asks
            self._gaps_ns = sorted([later - earlier for earlier, later in pairwise(self._came_ns)])
            self._sums_ns = list(accumulate(self._gaps_ns, initial=0))
        gaps_ns, sums_ns = self._gaps_ns, self._sums_ns
        age_ns = self._outlook.view.now_ns - self._came[-1][0]
        shorter = bisect_right(gaps_ns, age_ns)
        if shorter < len(gaps_ns):
            rest_ns = (sums_ns[-1] - sums_ns[shorter]) / (len(gaps_ns) - shorter) - age_ns
        else:
            rest_ns = float(gaps_ns[-1])
        return max(0.0, rest_ns - sums_ns[-1] / len(gaps_ns))

    def odds(self, bid: Bid) -> float:
        """How likely it is in time, as a part of how likely others are (`parts.odds`)."""
        return bid.quantile / self._outlook.quantile
