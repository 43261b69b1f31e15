"""How much longer a wait is than it looks on arrival, by what became of earlier promises.

How far a fluid's wait is from the truth depends on the load: batches stay small where deadlines are
tight, what is queued may be given up for something better, and a burst is followed by a lull. So a
wait is multiplied by a factor that is learned: a promise that was not kept raises it, each batch
that what was refused could have filled lowers it, and so does, a little, each request served.

Who is given up for something better is mostly what costs much for its weight, and that says nothing
of what is cheap; nor of what is more urgent, for which it may have been given up. So what is as
urgent and costs alike for its weight, on the same targets, has a factor of its own, which what is
broken to others leaves alone. What lowers one lowers all: there is room.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

from policies.parts.pace import Pace

BROKEN = 1.05
"""The factor rises by this when something that was admitted has to be dropped. Together with `KEPT`
it settles where one moment with drops comes on fifty requests served. Higher means fewer broken
promises, and less that is finished: docs/policies-compared.md has figures."""

MISSED = 0.7
"""It falls by this for each refused request that would have filled a batch."""

KEPT = 0.999
"""It falls by this for each that is served: without broken promises it is tried to admit more."""

LEAST, MOST = 0.05, 2.5
"""Where the factor ends. With 1.0 a little more is finished under overload, and far more promises
are broken: docs/policies-compared.md has figures."""

_KINDS = 200
"""Factors that are remembered though they may not be asked for again."""

_Alike = tuple[int, int, frozenset[str]]
"""What shares a factor: the priority, the time that a unit of weight costs (its power of two), and
the ids of the targets that serve the class."""


class Caution:
    """The factors by which waits are multiplied."""

    def __init__(self) -> None:
        """Has seen no promise yet."""
        self._fallen = 0.0  # the logarithm of what all have been lowered by
        self._factors: dict[_Alike, tuple[float, float]] = {}
        self._broken: set[_Alike] = set()
        self._broken_ns = -1

    def factor(self, pace: Pace, weight: float, priority: int) -> float:
        """By what the wait of a request is multiplied.

        Args:
            pace: How fast the work of its class is done.
            weight: What it is worth.
            priority: How urgent it is.
        """
        return self._factor(_alike(pace, weight, priority))

    def broken(self, now_ns: int, dropped: Iterable[tuple[Pace, float, int]]) -> None:
        """Requests that were admitted have to be dropped.

        However many those are at one moment that are alike: they have one cause.

        Args:
            now_ns: The moment.
            dropped: How fast the work of each one's class is done, its weight and priority.
        """
        if now_ns != self._broken_ns:
            self._broken_ns = now_ns
            self._broken.clear()
        for alike in dict.fromkeys([_alike(*each) for each in dropped]):  # a set has no order
            if alike in self._broken:
                continue
            self._broken.add(alike)
            self._factors[alike] = min(MOST, self._factor(alike) * BROKEN), self._fallen

    def kept(self, requests: int, missed: int) -> None:
        """A batch is sent, with which its requests are in time.

        Args:
            requests: How many those are.
            missed: How many that were refused would have made a larger batch of it.
        """
        self._fallen += requests * log(KEPT) + missed * log(MISSED)

    def _factor(self, alike: _Alike) -> float:
        known = self._factors.get(alike)
        if known is None:
            if len(self._factors) >= _KINDS:
                self._factors.clear()
            known = self._factors[alike] = 1.0, self._fallen
        factor, fallen = known
        return max(LEAST, factor * exp(self._fallen - fallen))


def _alike(pace: Pace, weight: float, priority: int) -> _Alike:
    return priority, int(pace.cost_ns / weight).bit_length(), pace.target_ids
