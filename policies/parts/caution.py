"""How much longer waits turn out than estimated on arrival, learned from earlier promises.

How far the fluid estimate of a wait is off depends on the load: batches stay small where deadlines
are tight, queued requests may be given up for better ones, and a burst is followed by a lull. So a
wait is multiplied by a learned factor. A broken promise raises it. A batch that refused requests
could have filled lowers it, and so does a target that had nothing to do while a refused request
could still have been in time there, and, slightly, each request served.

Requests given up for better ones are mostly those that cost much for their weight. That says
nothing about cheap requests, or about the more urgent ones for which they were given up. So
requests with the same priority, a similar cost per weight and the same targets share a factor, and
promises broken to others don't raise it. Whatever lowers one factor lowers all, because it shows
that there is room.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, frexp, log

from policies.parts.pace import Pace
from policies.parts.remembering import make_room

BROKEN = 1.05
"""The factor is multiplied by this when an admitted request has to be dropped. Together with `KEPT`
it settles at one moment with drops per fifty requests served. A higher value breaks fewer promises
but finishes less: docs/policies-compared.md has figures."""

TOGETHER = 8
"""How many requests may be dropped at one moment for one cause, or a quarter of what their targets
take at once if that is more. Where a hundred requests come at once, thirty may be dropped at one
moment and sixty served: if that counted once, caution would fall until all were admitted."""

MISSED = 0.7
"""The factor is multiplied by this for each refused request that would have filled a batch."""

IDLED = 0.8
"""The factor is multiplied by this for each refused request that an idle target could have had in
time. On a device that gains nothing from batches this is the only sign of too much caution."""

KEPT = 0.999
"""The factor is multiplied by this for each request served: while no promise is broken, more is
admitted."""

LEAST, MOST = 0.05, 2.5
"""The bounds of the factor. With at most 1.0, slightly more is finished under overload, but far
more promises are broken: docs/policies-compared.md has figures."""

_Alike = tuple[int, int, frozenset[str]]
"""The key of a shared factor: the priority, the time that a unit of weight costs (as a power of
two), and the ids of the targets that serve the class."""


class Caution:
    """The learned factors by which waits are multiplied."""

    def __init__(self) -> None:
        """Starts before any promise."""
        self._fallen = 0.0  # the logarithm of the common decrease of all factors
        self._factors: dict[_Alike, tuple[float, float]] = {}
        self._broken: dict[_Alike, int] = {}
        self._broken_ns = -1

    def factor(self, pace: Pace, weight: float, priority: int) -> float:
        """The factor for the wait of a request.

        Args:
            pace: The pace of its class.
            weight: Its weight.
            priority: Its priority.
        """
        return self._factor(_alike(pace, weight, priority))

    def broken(self, now_ns: int, dropped: Iterable[tuple[Pace, float, int]]) -> None:
        """Learns that admitted requests have to be dropped.

        Requests with the same factor that are dropped at one moment have one cause, up to
        `TOGETHER`.

        Args:
            now_ns: The current time.
            dropped: The pace of each one's class, its weight and its priority.
        """
        if now_ns != self._broken_ns:
            self._broken_ns = now_ns
            self._broken.clear()
        for pace, weight, priority in dropped:
            alike = _alike(pace, weight, priority)
            before = self._broken.get(alike, 0)
            self._broken[alike] = before + 1
            if before % max(TOGETHER, pace.at_once // 4) == 0:
                self._factors[alike] = min(MOST, self._factor(alike) * BROKEN), self._fallen

    def kept(self, requests: int, missed: int) -> None:
        """Learns that a batch is sent whose requests will be in time.

        Args:
            requests: How many requests it has.
            missed: How many refused requests would have filled it up to the next size.
        """
        self._fallen += requests * log(KEPT) + missed * log(MISSED)

    def idled(self, refused: int) -> None:
        """Learns that targets were idle, and how many refused requests they could have had."""
        self._fallen += refused * log(IDLED)

    def _factor(self, alike: _Alike) -> float:
        known = self._factors.get(alike)
        if known is None:
            make_room(self._factors)
            known = self._factors[alike] = 1.0, self._fallen
        factor, fallen = known
        return max(LEAST, factor * exp(self._fallen - fallen))


def _alike(pace: Pace, weight: float, priority: int) -> _Alike:
    return priority, frexp(pace.cost_ns / weight)[1], pace.target_ids
