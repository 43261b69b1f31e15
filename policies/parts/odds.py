"""Which latency quantile to rely on: what caution costs where latency has a long tail.

A policy that relies on the 95 % quantile keeps nearly every promise, and refuses every request with
less time than that. If the tail is several times as long as most batches take, it refuses nearly
everything, although most of that would be in time. And where batching pays, requests near their
deadlines go in small batches, which takes time from all others. If the share of a budget that is
left when a batch starts is uniformly distributed, then the number of such requests in time per unit
of time is

    (SPARE + q) / (SPARE + 1)  *  max over batch sizes of  rate * max(0, 1 - latency at q / budget)

The first factor is the share of promises that are kept, which exceeds q because few batches start
at the last promised moment. The second is the number of promises made, in the best batch size:
large batches save time, small ones leave more of the budget. The quantile q of `CHOICES` with the
highest value is used, summed over recent budgets and over the targets, each with the variant of the
model that gives it most. So a slow device or variant with widely spread latency does not lead to
gambling if a steady one can do the work.

If there are costly targets or other boxes, the highest quantile is used: they get what is not sure
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import fsum

from policies.parts.remembering import make_room
from scheduler.core.latency import LatencyCurve
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass

CHOICES = (0.95, 0.8, 0.5)
"""The surest first. Below 0.5, a batch would be predicted to miss."""

MARGIN = 1.03
"""A less sure quantile must be better by this factor."""

SPARE = 2
"""How many requests start well before the last moment, for each that starts at it."""

EVERY_NS = 250_000_000
"""How often the choice for a class is reconsidered."""

RECENT = 32
"""How many recent budgets of a class are used."""

Offered = tuple[Sequence[LatencyCurve], int, int]
"""How long batches of each variant take on a target, how long a request with its tensors takes to
get there, and how many batches run at once."""


class _Asked:
    """The recent requests of one class.

    Attributes:
        budgets_ns: Their budgets.
        due_ns: When to reconsider which quantile is best.
    """

    __slots__ = ("budgets_ns", "due_ns")

    def __init__(self) -> None:
        self.budgets_ns: deque[int] = deque(maxlen=RECENT)
        self.due_ns = 0


class Odds:
    """Chooses quantiles by recent budgets, and by how far latencies spread.

    Attributes:
        due: Classes for which the choice should be reconsidered; the reader clears it.
    """

    def __init__(self) -> None:
        """Starts before any arrival."""
        self.due: list[RequestClass] = []
        self._view: View | None = None
        self._asked: dict[RequestClass, _Asked] = {}

    def came(self, view: View, arrivals: Iterable[Request]) -> None:
        """Takes in new arrivals; must be called at each event, before anything is looked up.

        Args:
            view: The view at this event.
            arrivals: The arrivals of the view.
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
                make_room(asked)
                known = asked[request.kind] = _Asked()
            known.budgets_ns.append(request.deadline_ns - now_ns)
            if now_ns >= known.due_ns:
                known.due_ns = now_ns + EVERY_NS
                self.due.append(request.kind)

    def quantile(self, kind: RequestClass, offered: Iterable[Offered]) -> float:
        """The quantile to rely on.

        Args:
            kind: The class of the requests.
            offered: What the targets offer to it.
        """
        asked = self._asked.get(kind)
        budgets_ns = asked.budgets_ns if asked else ()
        in_time = [0.0] * len(CHOICES)
        for curves, way_ns, width in offered:
            for number, quantile in enumerate(CHOICES):
                promised = max([_of_all(budgets_ns, curve, quantile, way_ns) for curve in curves])
                in_time[number] += (SPARE + quantile) / (SPARE + 1) * promised * width
        best = 0
        for number, each in enumerate(in_time):
            if each > MARGIN * in_time[best]:
                best = number
        return CHOICES[best]


def _of_all(budgets_ns: Iterable[int], curve: LatencyCurve, quantile: float, way_ns: int) -> float:
    """The sum of `_promised` over budgets, with a variant that is relied on at a quantile."""
    rung = curve.usual_rung()
    median = curve.ladder(CHOICES[-1])
    spread = curve.ladder(quantile).latency_ns[rung] / median.latency_ns[rung]
    takes_ns = [way_ns + spread * ns for ns in median.latency_ns]
    return fsum([_promised(ns, takes_ns, median.rate) for ns in budgets_ns])


def _promised(budget_ns: int, takes_ns: list[float], rate: tuple[float, ...]) -> float:
    """How many requests with a given budget can be promised to be in time, per nanosecond.

    Args:
        budget_ns: The budget.
        takes_ns: The assumed latency by batch size, ascending.
        rate: The throughput by batch size, in requests per nanosecond.
    """
    most = 0.0
    for at, needed_ns in enumerate(takes_ns):
        if needed_ns >= budget_ns:
            break
        promised = rate[at] * (1 - needed_ns / budget_ns)
        if promised > most:
            most = promised
    return most
