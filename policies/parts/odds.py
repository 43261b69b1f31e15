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

If there are costly targets or other boxes, they get what is not sure here, and requests wait for
own devices until just before the last moment. So SPARE is 0 then. And the second factor is at most
what would be asked for if all that came lately had been of this class: with devices to spare, the
highest quantile is the best.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, fsum, inf

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

LOAD_NS = 500_000_000
"""The time constant of the averaged load."""

Offered = tuple[Sequence[LatencyCurve], int, int]
"""How long batches of each variant take on a target, how long a request with its tensors takes to
get there, and how many batches run at once."""


class _Asked:
    """The recent requests of one class.

    Attributes:
        budgets_ns: Their budgets.
        due_ns: When to reconsider which quantile is best.
        cost_ns: The time per request that all targets together need at best; 0 if not known yet.
    """

    __slots__ = ("budgets_ns", "cost_ns", "due_ns")

    def __init__(self) -> None:
        self.budgets_ns: deque[int] = deque(maxlen=RECENT)
        self.due_ns = 0
        self.cost_ns = 0.0


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
        self._load = 0.0
        self._load_ns = 0

    def came(self, view: View, arrivals: Sequence[Request]) -> None:
        """Takes in new arrivals; must be called at each event, before anything is looked up.

        Args:
            view: The view at this event.
            arrivals: The arrivals of the view.
        """
        asked, now_ns = self._asked, view.now_ns
        if self._view is not view:
            self._view = view
            asked.clear()
            self._load, self._load_ns = 1.0, now_ns  # all devices in use, until more is known
        if arrivals:
            self._load *= exp((self._load_ns - now_ns) / LOAD_NS)
            self._load_ns = now_ns
        for request in arrivals:
            if request.accept_late:
                continue
            known = asked.get(request.kind)
            if known is None:
                make_room(asked)
                known = asked[request.kind] = _Asked()
            known.budgets_ns.append(request.deadline_ns - now_ns)
            self._load += known.cost_ns / LOAD_NS
            if now_ns >= known.due_ns:
                known.due_ns = now_ns + EVERY_NS
                self.due.append(request.kind)

    def quantile(
        self, kind: RequestClass, offered: Sequence[Offered], is_backed: bool = False
    ) -> float:
        """The quantile to rely on.

        Args:
            kind: The class of the requests.
            offered: What the targets offer to it.
            is_backed: Whether there are costly targets or other boxes.
        """
        asked = self._asked.get(kind)
        if asked is None or not offered:
            return CHOICES[0]
        spare, most = (0, self._wanted(asked, offered)) if is_backed else (SPARE, inf)
        in_time = []
        for quantile in CHOICES:
            promised = 0.0
            for curves, way_ns, width in offered:
                of_each = [_of_all(asked.budgets_ns, curve, quantile, way_ns) for curve in curves]
                promised += max(of_each) * width
            in_time.append((spare + quantile) / (spare + 1) * min(promised, most))
        best = 0
        for number, each in enumerate(in_time):
            if each > MARGIN * in_time[best]:
                best = number
        return CHOICES[best]

    def _wanted(self, asked: _Asked, offered: Sequence[Offered]) -> float:
        """How many requests of a class would take the time that all classes did lately.

        Returns:
            It is comparable with `_of_all`: per nanosecond, times the number of recent budgets.
        """
        at_best = [max([max(c.ladder(CHOICES[-1]).rate) for c in of]) * n for of, _, n in offered]
        asked.cost_ns = 1 / fsum(at_best)
        return len(asked.budgets_ns) * self._load / asked.cost_ns


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
