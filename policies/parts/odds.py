"""How sure of its latencies to be: what caution costs where some batches take far longer than most.

Who counts on the time in which 95 of 100 batches are done keeps nearly every promise, and refuses
what has less time than that. Where latency has a long tail that is several times what most batches
take, so nearly everything is refused of which most would be in time. And where batches pay, what is
near a deadline goes in small ones, which is time that all others miss. If what is left of a budget
when a batch starts is anything between nothing and all of it, then of such requests so many are in
time per time:

    (SPARE + q) / (SPARE + 1)  *  max over batch sizes of  rate * max(0, 1 - latency at q / budget)

The first factor is how many promises are kept, since few start at the last moment at which they
are still promised; the second for how many one is given, in batches that save time or in small
ones that leave some. That quantile q of `CHOICES` is taken with which this is most, over the
budgets that were asked for lately, and over the targets. So a slow device whose latency spreads
is not gambled with where a steady one does most of the work.

Where there are others, who are paid for or are other boxes, the surest is counted on: they get what
is not sure here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduler.core.latency import LatencyCurve
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass

CHOICES = (0.95, 0.8, 0.5)
"""The surest first. At less than a half it would be predicted to miss."""

MARGIN = 1.03
"""So much better is one that is less sure."""

SPARE = 2
"""For each request that starts at the last moment so many start well before it."""

EVERY_NS = 250_000_000
"""How often it is asked for a class whether another would be better."""

RECENT = 32
"""So many requests of a class say what its budgets are."""

Offered = tuple[LatencyCurve, int, int]
"""How long batches take on a target, how long the tensors of one request need to get there, and how
many batches run at once."""

_KINDS = 200
"""Classes whose budgets are remembered though they may not come again."""


class _Asked:
    """What was asked for of one class.

    Attributes:
        budgets_ns: The budgets of the last ones.
        due_ns: When to ask again which quantile is best.
    """

    __slots__ = ("budgets_ns", "due_ns")

    def __init__(self) -> None:
        self.budgets_ns: deque[int] = deque(maxlen=RECENT)
        self.due_ns = 0


class Odds:
    """Chooses quantiles by what was asked for, and by how far latencies spread.

    Attributes:
        due: Classes of which it is to be asked again, by who then clears it.
    """

    def __init__(self) -> None:
        """Nothing has come."""
        self.due: list[RequestClass] = []
        self._view: View | None = None
        self._asked: dict[RequestClass, _Asked] = {}

    def came(self, view: View, arrivals: Iterable[Request]) -> None:
        """Takes in what has come; to be called at each event, before anything is looked up.

        Args:
            view: The moment.
            arrivals: Those of the view.
        """
        asked, now_ns = self._asked, view.now_ns
        if self._view is not view:
            self._view = view
            asked.clear()
        for request in arrivals:
            if request.accept_late:
                continue
            known = asked.get(request.kind)
            if known is None:
                if len(asked) >= _KINDS:
                    asked.clear()
                known = asked[request.kind] = _Asked()
            known.budgets_ns.append(request.deadline_ns - now_ns)
            if now_ns >= known.due_ns:
                known.due_ns = now_ns + EVERY_NS
                self.due.append(request.kind)

    def quantile(self, kind: RequestClass, offered: Iterable[Offered]) -> float:
        """Which quantile to count on.

        Args:
            kind: For requests of this class.
            offered: By whom they could be done.
        """
        asked = self._asked.get(kind)
        budgets_ns = asked.budgets_ns if asked else ()
        in_time = [0.0] * len(CHOICES)
        for curve, way_ns, width in offered:
            rung = curve.usual_rung()
            median = curve.ladder(CHOICES[-1])
            for number, quantile in enumerate(CHOICES):
                spread = curve.ladder(quantile).latency_ns[rung] / median.latency_ns[rung]
                takes_ns = [way_ns + spread * ns for ns in median.latency_ns]
                promised = sum([_promised(ns, takes_ns, median.rate) for ns in budgets_ns])
                in_time[number] += (SPARE + quantile) / (SPARE + 1) * promised * width
        best = 0
        for number, each in enumerate(in_time):
            if each > MARGIN * in_time[best]:
                best = number
        return CHOICES[best]


def _promised(budget_ns: int, takes_ns: list[float], rate: tuple[float, ...]) -> float:
    """How many requests with a budget are promised to be in time, per nanosecond.

    Args:
        budget_ns: The budget.
        takes_ns: By batch size, ascending, how long a batch is taken to need.
        rate: By batch size how many requests are done per nanosecond.
    """
    most = 0.0
    for at, needed_ns in enumerate(takes_ns):
        if needed_ns >= budget_ns:
            break
        promised = rate[at] * (1 - needed_ns / budget_ns)
        if promised > most:
            most = promised
    return most
