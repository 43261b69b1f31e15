"""Recent arrivals as a forecast of future ones: how long they can wait, their worth, their cost.

A batch runs to its end. Requests that arrive meanwhile with little time are late behind it, however
cheap they are. The expected loss behind a run of length s is

    sum over recent arrivals of  max(0, s - slack) * max(0, weight - worth per time * cost)

per unit of the time in which they arrived, with s counted from when the next of a kind is expected.
The work that is finished instead earns its usual worth
per unit of all targets' time, so a request that earns no more than that for its cost is no loss.
Weights are multiplied by the odds of being in time (`parts.odds`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from itertools import accumulate, pairwise
from math import exp, fsum, inf
from operator import attrgetter, mul

from policies.parts.admission import Admission
from policies.parts.outlook import NEVER_NS, Bid, Outlook
from scheduler.core.policy import Place
from scheduler.core.requests import Request, RequestClass

RECENT = 256
"""How many recent requests the forecast uses."""

LEAST = 16
"""With fewer requests than this there is no forecast."""

PART = 2
"""Arrivals are counted again once one in `PART` of them is new."""

ENDED = 2
"""Arrivals of one kind have ended if the last gap is longer than this many times any before it."""

PARTS = 8
"""The number of parts of a group, by slack, in each of which all requests can wait equally long."""

RARE = 0.1
"""If all but one class make up no more than this share together, they are ignored."""

BUSY = 0.25
"""While recent requests need less than this share of the targets' time, time is not scarce."""

_Shared = tuple[int, int, frozenset[str]]
"""A priority, the step of a cost per weight, and the ids of the targets that serve the class."""


_Each = tuple[int, float]
"""How long a request could have waited, and its worth beyond its cost."""

_Sums = tuple[tuple[int, ...], list[float], list[float]]
"""How long each of several requests could have waited, ascending; the prefix sums of their worth
beyond their cost; and the prefix sums of that times how long they could have waited."""


class Alike:
    """Recent arrivals of one priority and cost per weight, for the same targets.

    Args:
        priority: Their priority.
        step: The step of their cost per weight, see `Pace.step`.
        target_ids: The targets that serve them.

    Attributes:
        kind: The class of the last of them.
        work_ns: The time that they need of all targets together.
        last_ns: When the last of them arrived; -1 before the first.
        longest_ns: The longest gap between two of them.
    """

    kind: RequestClass

    def __init__(self, priority: int, step: int, target_ids: frozenset[str]) -> None:
        self.priority = priority
        self.step = step
        self.target_ids = target_ids
        self.work_ns = 0.0
        self.last_ns = -1
        self.longest_ns = 0
        self._gaps_ns: list[int] = []
        self._came: list[_Each] = []
        self._sums: _Sums | None = None

    def note(self, kind: RequestClass, now_ns: int) -> None:
        """Records an arrival; it counts in `lost` only once all are counted again."""
        if self.last_ns >= 0:
            self.longest_ns = max(self.longest_ns, now_ns - self.last_ns)
        self.kind, self.last_ns = kind, now_ns

    def quiet_ns(self, now_ns: int) -> int:
        """How long at least until the next arrival, judged by how long ago the last one was.

        A gap that lasts already is expected to be as long as the shortest one before it that was
        longer. That is next to nothing if arrivals are independent, and the time until the next
        burst after a burst. Arrivals that have ended are expected to stay away for as long again.
        """
        age_ns = now_ns - self.last_ns
        if age_ns > ENDED * self.longest_ns:
            return age_ns
        longer = bisect_right(self._gaps_ns, age_ns)
        gap_ns = self._gaps_ns[longer] if longer < len(self._gaps_ns) else self.longest_ns
        return max(0, gap_ns - age_ns)

    def forget(self) -> None:
        """Forgets the recent arrivals, before they are counted again."""
        self._gaps_ns, self._came, self._sums = [], [], None
        self.work_ns = 0.0

    def count(self, at_ns: int, slack_ns: int, worth: float, cost_ns: float) -> None:
        """Counts a recent arrival; they come in order, and `counted` is called after the last.

        Args:
            at_ns: When it arrived.
            slack_ns: How long it could have waited.
            worth: Its worth beyond its cost.
            cost_ns: Its cost.
        """
        if self._came:
            self._gaps_ns.append(at_ns - self.last_ns)
        self.last_ns = at_ns
        self._came.append((slack_ns, worth))
        self.work_ns += cost_ns

    def counted(self) -> None:
        """Finishes counting."""
        self._gaps_ns.sort()
        self.longest_ns = self._gaps_ns[-1] if self._gaps_ns else 0

    def lost(self, length_ns: float) -> float:
        """The loss behind a run of a length, multiplied by the time in which they arrived."""
        slack_ns, worth, slack_worth = self._added_up()
        count = bisect_right(slack_ns, length_ns)
        return length_ns * worth[count] - slack_worth[count]

    def behind(self, length_ns: float) -> float:
        """How many are late behind a run of a length, multiplied by the time they arrived in."""
        slack_ns, _, _ = self._added_up()
        return fsum([length_ns - each for each in slack_ns if each < length_ns])

    def __len__(self) -> int:
        """How many there are."""
        return len(self._came)

    def patient(self) -> tuple[int, float]:
        """How long the most patient of them could have waited, and their mean worth."""
        slack_ns, worth, _ = self._added_up()
        return slack_ns[-1], worth[-1] / len(slack_ns)

    def late(self, wait_ns: float) -> float:
        """The worth of those that are late if waits are exponential, with this mean."""
        slack_ns, worth, _ = self._added_up()
        many = len(slack_ns)
        lost = 0.0
        for begin, until in pairwise([many * part // PARTS for part in range(PARTS + 1)]):
            if until > begin:
                middle_ns = slack_ns[(begin + until) // 2]
                lost += (worth[until] - worth[begin]) * exp(-middle_ns / wait_ns)
        return lost

    def _added_up(self) -> _Sums:
        """Computes the sums on demand: they are not needed if all runs are short."""
        if self._sums is None:
            self._came.sort()
            slack_ns, worth = zip(*self._came, strict=True)
            slack_worth = accumulate(map(mul, slack_ns, worth), initial=0.0)
            self._sums = slack_ns, list(accumulate(worth, initial=0.0)), list(slack_worth)
        return self._sums


_Came = tuple[int, int, float, float, float, Alike, float, RequestClass]
"""An arrival that could be in time by itself: when it arrived, how long it could wait, its weight
times its odds, its weight, its cost, its group, the worth served before it, and its class."""


class Coming:
    """The recent arrivals.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class, and is told which costs fit.

    Attributes:
        groups: The arrivals, grouped by what they have in common.
        least_slack_ns: A run that is no longer than this makes no arrival late, on any target.
        is_one: Whether all arrivals are of one class, apart from a share of at most `RARE`.
        worth_per_ns: What all targets together earned per nanosecond with recent requests.
        uneven: How much longer they wait than if they came independently: (1 + CV**2) / 2 of the
            gaps between them, as in Kingman's formula; 1 if all came at once.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Starts before any arrival."""
        self.groups: list[Alike] = []
        self.is_one = False
        self.uneven = 1.0
        self.worth_per_ns = 0.0
        self.least_slack_ns = NEVER_NS
        self._outlook = outlook
        self._admission = admission
        self._came: deque[_Came] = deque(maxlen=RECENT)
        self._uncounted = 0
        self._known: dict[_Shared, Alike] = {}
        self._counts: Counter[RequestClass] = Counter()
        self._worth = 0.0

    def served(self, place: Place) -> None:
        """Records that a batch is sent whose requests will be in time."""
        weight = fsum([request.weight for request in place.requests])
        self._worth += weight * self.odds(self._outlook.bids(place.requests[0].kind)[0])

    def look(self) -> None:
        """Counts earlier arrivals; must be called at each event."""
        if self._uncounted >= LEAST and self._uncounted * PART >= len(self._came):
            self._count(self._outlook.view.now_ns)  # by now some may have been served

    def came(self, request: Request) -> None:
        """Records an arrival; must be called after admission has looked at it."""
        now_ns, kind, weight = self._outlook.view.now_ns, request.kind, request.weight
        pace = self._admission.pace(kind)
        slack_ns, cost_ns = request.deadline_ns - now_ns - pace.least_ns, pace.cost_ns
        if slack_ns >= 0 and cost_ns:
            shared = request.priority, pace.step(weight), pace.target_ids
            alike = self._known.get(shared)
            if alike is None:
                alike = self._known[shared] = Alike(*shared)
            alike.note(kind, now_ns)
            worth = weight * self.odds(pace.bids[0])
            self._came.append((now_ns, slack_ns, worth, weight, cost_ns, alike, self._worth, kind))
            self._uncounted += 1

    def _count(self, now_ns: int) -> None:
        self._uncounted = 0
        first_ns, *_, worth, _ = self._came[0]
        self.worth_per_ns = (self._worth - worth) / max(1, now_ns - first_ns)
        for alike in self._known.values():
            alike.forget()
        groups: list[Alike] = []
        kinds = []
        least_ns, before_ns, squares, inverse = NEVER_NS, first_ns, 0.0, 0.0
        for at_ns, slack_ns, worth, weight, cost_ns, alike, _, kind in self._came:
            if not alike.work_ns:  # the first of its group
                groups.append(alike)
            net = worth - self.worth_per_ns * cost_ns
            alike.count(at_ns, slack_ns, net if net > 0.0 else 0.0, cost_ns)
            kinds.append(kind)
            inverse += 1.0 / weight
            if slack_ns < least_ns:
                least_ns = slack_ns
            squares += float(at_ns - before_ns) ** 2
            before_ns = at_ns
        self.groups = groups
        self._admission.fitting = _fitting(groups, now_ns - first_ns)
        self._admission.usual = len(kinds) / inverse
        span = float(before_ns - first_ns)
        self.uneven = (len(kinds) - 1) * squares / (2.0 * span**2) if span else 1.0
        self._counts = Counter(kinds)
        self.is_one = max(self._counts.values()) >= (1.0 - RARE) * len(kinds)
        self._known = {(each.priority, each.step, each.target_ids): each for each in groups}
        for each in groups:
            each.counted()
        unlike_ns = max([self._admission.pace(each.kind).unlike_ns for each in groups])
        self.least_slack_ns = least_ns - unlike_ns

    def since_ns(self) -> int:
        """The time in which the recent requests arrived."""
        return max(1, self._outlook.view.now_ns - self._came[0][0])

    def is_calm(self) -> bool:
        """Whether recent requests are known, and leave the targets idle most of the time."""
        work_ns = fsum([each.work_ns for each in self.groups])
        return 0.0 < work_ns < BUSY * self.since_ns()

    def all_expected(self, within_ns: int) -> float:
        """How many requests of all classes are expected within a time."""
        return len(self._came) * within_ns / self.since_ns()

    def expected(self, kind: RequestClass, within_ns: int) -> float:
        """How many requests of a class are expected within a time, judged by the recent ones."""
        return self._counts[kind] * max(0, within_ns) / self.since_ns()

    def odds(self, bid: Bid) -> float:
        """How likely a request is in time, relative to the usual quantile (`parts.odds`)."""
        return bid.quantile / self._outlook.quantile


def _fitting(groups: list[Alike], within_ns: int) -> float:
    """The step of the cost per weight below which there is time; -inf if there is for all."""
    for each in sorted(groups, key=attrgetter("step")):
        within_ns -= int(each.work_ns)
        if within_ns < 0:
            return float(each.step)
    return -inf
