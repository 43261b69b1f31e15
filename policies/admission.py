"""Admission: whether a new request can be in time without making others miss.

The model is fluid. What is queued ahead of a request in (priority, deadline, id) order is served
at the best rate that its targets reach together; then comes the request's own batch, together
with those behind it that fill it, since batches are filled when there is enough to do. The
promised quantile is that of the sum: the spread of a queue's work grows with its square root. A
class's work falls evenly on the time of the targets that serve it, so it delays a request only
on the targets that they share. What takes more time per weight than others must be in time more
comfortably, so that it is the first to be refused when there is too much to do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import sqrt

from policies.outlook import Outlook
from policies.pace import Pace
from scheduler.core.policy import Drop, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass

PUSHED = 5
"""Promised requests of its own class that an arrival is checked against."""

OTHERS = 1
"""Promised requests of other classes that an arrival is checked against."""

SHARE = 0.7
"""A batch may take this share of a budget, since the batch before it takes the rest. (Nexus, H.
Shen et al., SOSP 2019, takes half; a batch that is halfway through on average needs less.)"""

HASTE = 2.0
"""At most so much more comfortably in time must be what takes longer than others."""

_TRIES = 3
"""Budgets that are tried for a counter-offer before the one that is certain."""

_KEPT = 200
"""Paces that are kept of classes that may not come again."""

_PRIME = 1_009
"""Spreads deadlines, which tend to be round numbers, over the requests to probe."""

_NEWEST = 1 << 62
"""An id after all others."""


class Admission:
    """Decides about new requests.

    Args:
        outlook: What the targets could do.
    """

    def __init__(self, outlook: Outlook) -> None:
        """Looks through the outlook of its policy."""
        self._outlook = outlook
        self._seen: tuple[View, int, int] | None = None
        self._paces: dict[RequestClass, Pace] = {}
        self._lanes: list[tuple[ClassQueue, Pace]] = []
        self._tightest: Request | None = None

    def _look(self) -> None:
        """Takes in what is queued and predicted now."""
        view = self._outlook.view
        if self._seen is None or self._seen[0] is not view or self._seen[1] != view.fleet_epoch:
            self._paces.clear()
        elif self._seen[2] != view.curve_epoch:
            current = [(kind, pace) for kind, pace in self._paces.items() if pace.is_current()]
            self._paces = dict(current if len(current) < _KEPT else ())
        self._seen = view, view.fleet_epoch, view.curve_epoch
        starts_ns = self._outlook.starts_ns
        self._lanes = []
        for kind, queue in view.queues.items():
            pace = self._paces.get(kind)
            if pace is None:
                pace = self._paces[kind] = Pace(self._outlook.bids(kind))
            pace.starts_ns = [starts_ns[bid.target_id] for bid in pace.bids]
            self._lanes.append((queue, pace))

    def refusal(self, request: Request, undecided: Collection[int] = ()) -> Drop | None:
        """The reason to refuse a queued arrival, with what would be possible.

        Args:
            request: The arrival.
            undecided: The ids of later arrivals, to which nothing is promised yet.

        Returns:
            None when the request is admitted.
        """
        self._look()
        if not self._paces[request.kind].bids or request.deadline_ns >= self._clear_ns():
            return None
        finish_ns = min(self._finishes_ns(request, haste=self._haste(request)))
        if finish_ns > request.deadline_ns:
            late_ms = (finish_ns - request.deadline_ns) / 1e6
            why = f"would be {late_ms:.1f} ms late behind what was admitted before"
        elif self._broken_promise(request, undecided):
            why = "would make a request that was admitted before miss its deadline"
        else:
            return None
        return Drop(request, why, self.counter_offer(request))

    # -- the fluid schedule

    def _clear_ns(self) -> int:
        """When all that is queued is done for certain, whatever the order."""
        work_ns = jitter_ns = batch_ns = 0.0
        for queue, pace in self._lanes:
            if pace.bids:
                work_ns += len(queue) * pace.share_ns(len(queue))
                jitter_ns = max(jitter_ns, pace.jitter_ns)
                batch_ns = max(batch_ns, pace.slowest_ns)
        start_ns = max(self._outlook.starts_ns.values(), default=0)
        return int(start_ns + work_ns + sqrt(jitter_ns * work_ns) + batch_ns)

    def _haste(self, request: Request) -> float:
        """By how much the wait of a request is overstated, for what it takes from others.

        Under overload that leaves room for those of which more can be served in the same time.
        """
        cost_ns = self._paces[request.kind].cost_ns / request.weight
        least_ns = min([pace.cost_ns for _, pace in self._lanes if pace.bids])
        return min(sqrt(cost_ns / least_ns), HASTE) if cost_ns > least_ns else 1.0

    def _finishes_ns(self, request: Request, besides: int = 0, haste: float = 1.0) -> list[int]:
        """When a request would be done on each of its targets.

        Args:
            request: Queued, or to be imagined in the queues.
            besides: How many ahead of it in its own class are not to be counted.
            haste: The factor by which its wait is overstated.
        """
        now_ns = self._outlook.view.now_ns
        pace = self._paces[request.kind]
        targets = len(pace.bids)
        work_ns = 0.0
        alike = waiting = 1
        for queue, other in self._lanes:
            ahead = queue.count_ahead(request)
            if other is pace:
                alike = ahead + 1 - besides
                waiting = len(queue)
            elif ahead:
                same = other.target_ids == pace.target_ids
                shared = targets if same else len(pace.target_ids & other.target_ids)
                work_ns += ahead * shared * other.share_ns(ahead)
        largest = pace.largest((request.deadline_ns - now_ns) * SHARE)
        in_last = (-(-alike // targets) - 1) % largest + 1
        before = alike - in_last * targets
        if before > 0:
            work_ns += before * targets * pace.share_ns(before)
            waiting -= before
        size = max(in_last, min(largest, -(-waiting // targets)))
        ready_ns = now_ns + int((pace.ready_ns(work_ns) - now_ns) * haste)
        return [
            (start_ns if start_ns > ready_ns else ready_ns) + batch_ns
            for start_ns, batch_ns in zip(pace.starts_ns, pace.batch_ns(size), strict=True)
        ]

    # -- promises

    def _broken_promise(self, request: Request, undecided: Collection[int] = ()) -> Request | None:
        """A request behind an arrival that would miss its deadline because of it.

        Requests that matter less, and those that may be late, do not count.
        """
        least_ns = None
        for promised in self._behind(request):
            if promised.accept_late or promised.id in undecided:
                continue
            slack_ns = promised.deadline_ns - min(self._finishes_ns(promised))
            if least_ns is None or slack_ns < least_ns:
                least_ns, self._tightest = slack_ns, promised
            if slack_ns < 0 and promised.weight >= request.weight:
                return promised
        return None

    def _behind(self, request: Request) -> Iterator[Request]:
        """A few requests of the same priority that are served after one.

        An arrival pushes one request of its own class out of each full batch into the next, and
        those are the ones that it delays most. Of the rest there are others each time.
        """
        place = (request.deadline_ns, request.id + 1)
        tight = self._tightest
        turn = request.deadline_ns // _PRIME
        others = []
        for queue, pace in self._lanes:
            level = queue.level(request.priority)
            start = bisect_left(level, place)
            if start == len(level) or not pace.bids:
                continue
            if (
                tight is not None
                and tight in queue
                and tight.priority == request.priority
                and (tight.deadline_ns, tight.id) >= place
            ):
                yield tight
            if queue.kind == request.kind:
                first = start + -queue.count_ahead(level[start][2]) % pace.full
                pushed = range(first, len(level), pace.full)
                probes = min(PUSHED, len(pushed))
                for probe in range(probes):
                    spot = pushed[(turn + probe * len(pushed) // probes) % len(pushed)]
                    yield level[spot][2]
            else:
                others.append((level, start))
        for probe in range(min(OTHERS, len(others))):
            level, start = others[(turn + probe) % len(others)]
            yield level[start + turn % (len(level) - start)][2]

    # -- counter-offers

    def counter_offer(self, request: Request) -> dict[str, int]:
        """The smallest budget found with which a queued request would be admitted in its stead.

        Returns:
            That budget, by the targets that could meet it.
        """
        self._look()
        now_ns = self._outlook.view.now_ns
        deadline_ns = request.deadline_ns
        haste = self._haste(request)
        for _ in range(_TRIES):
            asked = replace(request, deadline_ns=deadline_ns, id=_NEWEST)
            finishes = self._finishes_ns(asked, 1, haste)
            if min(finishes) > deadline_ns:
                deadline_ns = min(finishes)
            elif broken := self._broken_promise(asked):
                deadline_ns = broken.deadline_ns
            else:
                break
        else:
            deadline_ns = max(deadline_ns, self._last_ns(request.priority))
            finishes = []
        while not finishes or min(finishes) > deadline_ns:
            deadline_ns = max([deadline_ns, min(finishes, default=0)])
            asked = replace(request, deadline_ns=deadline_ns, id=_NEWEST)
            finishes = self._finishes_ns(asked, 1, haste)
        return {
            bid.target_id: deadline_ns - now_ns
            for bid, finish_ns in zip(self._paces[request.kind].bids, finishes, strict=True)
            if finish_ns <= deadline_ns
        }

    def _last_ns(self, priority: int) -> int:
        """The last deadline of a priority."""
        levels = [queue.level(priority) for queue, _ in self._lanes]
        return max([level[-1][0] for level in levels if level], default=0)
