"""What a run would make others late: where that is worth more, and has no room elsewhere, it waits.

A batch runs to its end. What comes meanwhile and has little time is lost, however cheap it would
have been: one item of 160 ms can cost ten of 2 ms their deadlines. Of what came lately it is known
how long each could have waited, what it was worth, and what it cost. So a run of length s on a
target can be expected to lose

    sum over what came of  share * max(0, s - slack) * max(0, weight - worth per time * cost)

per time in which it came. `share` is that target's part of the rate at which all serve its class.
What is finished instead is worth something as well: that much per time of all targets, so of what
costs as much as it is worth nothing is lost. Only what costs less per weight than the request, and
is not less important, counts. Weights count as far as each would be in time (`parts.odds`).

Where that is more than the run is worth, it is to leave room for all of it: what is cheaper may
need a share of what the targets can do that no long run has taken, and no more. So of several
targets some run what is long and the others what is short. A request for which there never is such
a room, as on a box with one device, is refused.

What may go is done in the way that costs others least: of the sizes of batches in which a class can
be run now, what the others lose behind one beyond what the least harmful one costs them for each
request is taken off its worth. So what has ten seconds left runs one by one beside a camera whose
frames have forty milliseconds, and in full batches where that makes nobody late.

Source: in a system that loses whom it can't serve at once a job is to be taken if it earns at least
what the time that it needs earns otherwise: B. L. Miller, "A queueing reward system with several
customer classes", Management Science 16(3), 1969; S. A. Lippman, S. M. Ross, "The streetwalker's
dilemma: a job shop model", SIAM Journal on Applied Mathematics 20(3), 1971. Here some can wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Container, Sequence
from itertools import accumulate
from operator import itemgetter, mul

from policies.parts.admission import Admission
from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import Candidate
from scheduler.core.policy import Drop, Place, Wake
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import step_of

RECENT = 256
"""So many requests say what comes."""

LEAST = 16
"""Fewer say nothing."""

PART = 4
"""What came is counted anew after a part of it is new."""

FIT = 0.3
"""What is cheaper has room where it needs at most this share of the targets that are left to it: it
is to be served within little more than it takes. With more of what is long less is in time."""

LIKELY = 0.5
"""So much of what is expected to be lost behind a batch counts where sizes are compared: some of it
is done elsewhere meanwhile. With all of it batches stay too small where nearly all can be done."""

_ANY_NS = 1 << 62

_first, _slack = itemgetter(0), itemgetter(1)

_Shared = tuple[int, int, frozenset[str]]
"""A priority, the step of a cost per weight, and who serves what has them."""


_Each = tuple[int, float, float]
"""How long one could have waited, its worth beyond its cost, and its cost."""

_Sums = tuple[tuple[int, ...], list[float], list[float]]
"""How long each of several could have waited, ascending; of so many of them the worth beyond their
cost, and the same times how long they could have waited."""


class _Alike:
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

    def slack_ns(self) -> tuple[int, ...]:
        """How long each could have waited, ascending."""
        return self._added_up()[0]

    def lost(self, length_ns: int) -> float:
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


_Came = tuple[int, int, float, float, _Alike, float]
"""When one came that could be in time by itself, how long it could wait, its weight times its odds,
its cost, who is like it, and what had been served before."""


class Displacement:
    """Holds or refuses what would make others late that are worth more.

    Args:
        outlook: What the targets could do.
        admission: Knows what each class costs.
    """

    def __init__(self, outlook: Outlook, admission: Admission) -> None:
        """Has seen nothing come."""
        self._outlook = outlook
        self._admission = admission
        self._came: deque[_Came] = deque(maxlen=RECENT)
        self._uncounted = 0
        self._groups: list[_Alike] = []
        self._known: dict[_Shared, _Alike] = {}
        self._least_slack_ns = _ANY_NS
        self._worth = 0.0

    # -- what comes

    def served(self, place: Place) -> None:
        """A batch is sent, with which its requests are in time."""
        weight = sum([request.weight for request in place.requests])
        self._worth += weight * self._odds(self._outlook.bids(place.requests[0].kind)[0])

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
                alike = self._known[shared] = _Alike(*shared)
            alike.kind = kind
            worth = weight * self._odds(pace.bids[0])
            self._came.append((now_ns, slack_ns, worth, cost_ns, alike, self._worth))
            self._uncounted += 1

    def _count(self, now_ns: int) -> None:
        self._uncounted = 0
        first_ns, *_, worth = self._came[0]
        worth_per_ns = (self._worth - worth) / max(1, now_ns - first_ns)
        groups: defaultdict[_Alike, list[_Each]] = defaultdict(list)
        for _, slack_ns, worth, cost_ns, alike, _ in self._came:
            net = worth - worth_per_ns * cost_ns
            groups[alike].append((slack_ns, net if net > 0.0 else 0.0, cost_ns))
        self._groups = list(groups)
        self._known = {(each.priority, each.step, each.target_ids): each for each in groups}
        for each, came in groups.items():
            each.count(came)
        self._least_slack_ns = min(map(_slack, self._came))

    # -- what it would lose

    def refusal(self, request: Request) -> Drop | None:
        """The reason to refuse a queued arrival; without a budget, for none would do.

        Returns:
            None when it is admitted.
        """
        pace = self._admission.pace(request.kind)
        if pace.longest_ns <= self._least_slack_ns:
            return None
        cheaper = self._cheaper(request.priority, pace.cost_ns / request.weight)
        if not cheaper:
            return None
        bids = self._outlook.bids(request.kind)
        if self._has_dear(bids):
            return None
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

    def wait(self, candidate: Candidate) -> Wake | None:
        """Until when a batch that could go now is held, if it is."""
        batch, length_ns = candidate.batch, candidate.latency_ns
        if length_ns <= self._least_slack_ns or any(request.accept_late for request in batch):
            return None
        self._admission.look()
        kind = batch[0].kind
        worth = sum([request.weight for request in batch])
        cost_ns = self._admission.pace(kind).cost_ns * len(batch)
        cheaper = self._cheaper(batch[0].priority, cost_ns / worth)
        if not cheaper:
            return None
        bid, own_id = candidate.bid, candidate.bid.target_id
        if self._has_dear(self._outlook.bids(kind)):
            return None
        if self._lost(cheaper, bid, length_ns) <= worth:
            return None
        now_ns = self._outlook.view.now_ns
        slacks_ns = sorted([slack_ns for each in cheaper for slack_ns in each.slack_ns()])
        soon_ns = now_ns + slacks_ns[len(slacks_ns) // 2]
        busy = {at: ns for at, ns in self._outlook.starts_ns.items() if ns > soon_ns}
        if self._fits(cheaper, own_id, busy):
            return None
        until_ns = min([now_ns + length_ns, *busy.values()])
        return Wake(until_ns, "others that come would be late, and are worth more")

    def excess(self, found: Sequence[Candidate]) -> list[float]:
        """What each batch likely costs others of its target, beyond what it needs to cost them.

        That is what the least harmful of the batches with the same variant costs them for each
        request. Of the others those count that are not less important.

        Args:
            found: What could go next on one target; at least one.
        """
        if max([each.latency_ns for each in found]) <= self._least_slack_ns:
            return [0.0] * len(found)
        self._admission.look()
        lost: list[float] = []
        least: dict[tuple[RequestClass, str], float] = {}
        for each in found:
            others = [other for other in self._groups if other.priority <= each.priority]
            lost.append(LIKELY * self._lost(others, each.bid, each.latency_ns))
            key, per_request = (each.queue.kind, each.offer.variant), lost[-1] / len(each.batch)
            least[key] = min(per_request, least.get(key, per_request))
        return [
            max(0.0, mine - least[each.queue.kind, each.offer.variant] * len(each.batch))
            for mine, each in zip(lost, found, strict=True)
        ]

    def _has_dear(self, bids: list[Bid]) -> bool:
        """Whether somebody can be paid for it: then there is room elsewhere."""
        return self._outlook.some_dear and any(bid.target.spec.is_dear for bid in bids)

    def _cheaper(self, priority: int, cost_ns: float) -> list[_Alike]:
        """What costs less per weight and is not less important."""
        step = step_of(int(cost_ns))
        return [each for each in self._groups if each.step < step and each.priority <= priority]

    def _lost(self, others: list[_Alike], bid: Bid, length_ns: int) -> float:
        """What is lost behind a run of a length on a target, as so much weight of its requests."""
        at = bid.target_id
        lost = sum([self._share(each, at) * each.lost(length_ns) for each in others])
        return lost / self._since_ns() / self._odds(bid)

    def _odds(self, bid: Bid) -> float:
        """How likely it is in time, as a part of how likely others are (`parts.odds`)."""
        return bid.quantile / self._outlook.quantile

    def _share(self, alike: _Alike, target_id: str) -> float:
        """The part of a target in the rate at which what is alike is served."""
        if target_id not in alike.target_ids:
            return 0.0
        return self._admission.pace(alike.kind).parts().get(target_id, 0.0)

    def _fits(self, cheaper: list[_Alike], own_id: str, busy: Container[str] = ()) -> bool:
        """Whether what is cheaper has room beside one more run on a target, if others are busy."""
        room, work_ns = 1.0, 0.0
        for each in cheaper:
            if own_id in each.target_ids:
                work_ns += each.work_ns
                pace = self._admission.pace(each.kind)
                parts = pace.parts()
                left = 0.0
                for bid in pace.bids:
                    if bid.target_id not in busy:
                        lanes = bid.target.spec.width - (bid.target_id == own_id)
                        left += lanes * parts[bid.target_id]
                room = min(room, left)
        return work_ns <= FIT * room * self._since_ns()

    def _since_ns(self) -> int:
        return max(1, self._outlook.view.now_ns - self._came[0][0])
