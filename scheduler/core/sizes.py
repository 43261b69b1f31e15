"""How long items take of other sizes than the one that was measured.

Of a model with free dimensions, as for speech or text, the profile knows items of one size; one
that is a thousand times as large takes longer. So each size, in steps, has a curve of its own: the
measured one, times a factor that is learned as such items run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, log

from scheduler.core import drift
from scheduler.core.belief import FIRST_NS, longer_ns
from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes

STEPS = 4
"""Steps of size to each power of two: what shares a curve differs by less than a quarter."""

RECENT = 15
"""So many batches tell the factor, by their lower quartile: the first item of a shape may take many
times as long as the next."""

FASTER = 0.75
"""A factor that falls by this was believed for too long; one that rises by it is news."""

FINDING = 8
"""For so many batches the factor is taken anew with each; then the curve learns by itself."""

SURE = 2
"""So many batches tell a factor to come back to once nothing has confirmed it for a while."""


def step_of(elements: int) -> int:
    """The step of size that a number of elements is on."""
    shift = max(0, elements.bit_length() - STEPS.bit_length())
    return STEPS * shift + (elements >> shift)


def least_elements(step: int) -> int:
    """The fewest elements on a step, or 1."""
    shift = max(0, step // STEPS - 1)
    return max(1, (step - STEPS * shift) << shift)


def factor_at(step: int, known: Sequence[tuple[int, float]]) -> float:
    """How many times as long as measured items on a step may take.

    Between two steps that are known it lies on a line or a power of size, whichever is lower.
    Larger items than all are taken to cost as much as the largest, smaller ones as little as their
    size: what is thought too slow would be refused, and nothing learned.

    Args:
        step: The step.
        known: Steps, in order, and their factors; at least one.
    """
    place = bisect_left(known, (step, 0.0))
    if place == len(known):
        return known[-1][1]
    size, above, most = least_elements(step), least_elements(known[place][0]), known[place][1]
    if not place:
        return most * size / above
    below, least = least_elements(known[place - 1][0]), known[place - 1][1]
    if most <= least or size == above:
        return most
    line = least + (most - least) * (size - below) / (above - below)
    exponent: float = log(most / least) / log(above / below)
    return min(line, least * exp(exponent * log(size / below)))


class SizedCurve(LatencyCurve):
    """Latency of items of one size, over the size of batches of them.

    Args:
        offer: Whose latency it is.
        step: The size.
        family: The curves of the other sizes.

    Attributes:
        step: The size.
        factor: How many times as long as measured its items took when that was last found; None
            before the first ran.
    """

    def __init__(self, offer: Offer, step: int, family: SizedCurves) -> None:
        """Starts from a guess."""
        self.step = step
        self.factor: float | None = None
        self._family = family
        self._guess = self._scale = family.guess(self)
        self._least: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._found = 0
        self._doubted = 0.0
        self._doubted_ns: int | None = None
        self._believed_ns = FIRST_NS
        super().__init__(offer)

    @property
    def was_tried(self) -> bool:
        """Whether something ran that is doubted by now."""
        return self._doubted > 0

    def suppose(self, guess: float) -> None:
        """Takes another guess; for a curve of which nothing has run."""
        self._guess = guess
        self._start_from(guess)

    def observe(self, batch: int, sample_ns: int, now_ns: int) -> None:
        """Learns from one finished batch."""
        super().observe(batch, sample_ns, now_ns)
        self._doubted_ns = None
        size = self.batch_sizes[bisect_left(self.batch_sizes, batch)]
        recent = self._recent
        recent.append(sample_ns / drift.median(self.offer.latency_ns[size]))
        told = sorted(recent if len(recent) >= SURE else [*recent, self._guess])
        factor = told[(len(told) - 1) // 4]
        if len(recent) == SURE and not FASTER * self._doubted <= factor <= self._doubted / FASTER:
            self._believed_ns = FIRST_NS
        if len(recent) >= SURE:
            self._least = factor if self._least is None else min(self._least, factor)
        if self._found < FINDING:
            self._found += 1
            self.factor = factor
            self._start_from(factor)
            self._family.guess_anew()

    def stale_ns(self) -> int | None:
        """When what was learned is stale, or doubted if nothing has confirmed it for long."""
        return self._doubted_ns if self._observed_ns is None else super().stale_ns()

    def forget(self) -> None:
        """Falls back to the least factor that it had, and when that is doubted to a guess."""
        self._found = 0
        observed_ns = self._observed_ns
        if observed_ns is not None:
            self._doubted_ns = observed_ns + self._believed_ns
            self._scale = self._guess if self._least is None else self._least
        else:
            self._doubted = self._least or self._guess
            self._doubted_ns = self._least = self.factor = None
            self._believed_ns = longer_ns(self._believed_ns)
            self._recent.clear()
            self._guess = self._scale = self._family.guess(self)
        super().forget()
        if observed_ns is None:  # and with it what was guessed by it of sizes that never ran
            self._family.guess_anew(tried=False)

    def _start_from(self, factor: float) -> None:
        self._scale = factor
        self._seed()

    def _profile(self, size: int) -> tuple[int, ...]:
        """Larger items take longer, but are disturbed as much as the measured ones, not more."""
        measured_ns = self.offer.latency_ns[size]
        median_ns = drift.median(measured_ns)
        middle_ns, spread = self._scale * median_ns, min(1.0, self._scale)
        return tuple([max(1, round(middle_ns + spread * (ns - median_ns))) for ns in measured_ns])


class SizedCurves:
    """The curves of one offer, for items of every size.

    Args:
        measured: That of the size that was measured.
    """

    def __init__(self, measured: LatencyCurve) -> None:
        """Knows one size."""
        self._measured = measured
        self._at = step_of(measured.offer.elements(measured.offer.item_shapes))
        self._others: dict[int, SizedCurve] = {}

    def curve(self, shapes: Shapes) -> LatencyCurve:
        """That of the size that items of these shapes have."""
        step = step_of(self._measured.offer.elements(shapes))
        if step == self._at:
            return self._measured
        curve = self._others.get(step)
        if curve is None:
            curve = self._others[step] = SizedCurve(self._measured.offer, step, self)
        return curve

    def all(self) -> Iterable[LatencyCurve]:
        """Those that were asked for, and the measured one."""
        return [self._measured, *self._others.values()]

    def guess_anew(self, tried: bool = True) -> None:
        """Says what is now known to the curves of which nothing has run, or only long ago.

        Args:
            tried: Whether to those as well of which something ran long ago.
        """
        for curve in self._others.values():
            if curve.factor is None and (tried or not curve.was_tried):
                curve.suppose(self.guess(curve))

    def guess(self, curve: SizedCurve) -> float:
        """How many times as long as measured items of a size may take, by those of other sizes."""
        return factor_at(curve.step, self.known(but=curve))

    def known(self, but: SizedCurve | None = None) -> list[tuple[int, float]]:
        """How many times as long as measured items of each size take, as `factor_at` wants it."""
        others = [each for each in self._others.values() if each is not but]
        found = [(each.step, each.factor) for each in others if each.factor is not None]
        return sorted([*found, (self._at, 1.0)])
