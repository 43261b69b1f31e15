"""How long items take whose size is not the measured one.

The profile of a model with free dimensions, e.g. for speech or text, covers items of one size; an
item a thousand times as large takes longer. So each size, in steps, has a curve of its own: the
measured curve, times a factor that is learned as such items run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, log

from scheduler.core import drift
from scheduler.core.belief import FIRST_NS, longer_ns
from scheduler.core.latency import STALE_NS, LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes

STEPS = 4
"""Size steps per power of two: items that share a curve differ in size by less than a quarter."""

RECENT = 15
"""The factor is the lower quartile over this many batches, because the first item of a shape may
take many times as long as the next."""

FASTER = 0.75
"""A factor that changes by more than this ratio, either way, resets the backoff: the doubted value
was wrong."""

FINDING = 8
"""For the first so many batches the factor is updated with each; then the curve learns by
itself."""

SURE = 2
"""From this many batches on, a factor may serve as the fallback when a later one goes stale."""


def step_of(elements: int) -> int:
    """The size step of an item with that many elements."""
    shift = max(0, elements.bit_length() - STEPS.bit_length())
    return STEPS * shift + (elements >> shift)


def least_elements(step: int) -> int:
    """The fewest elements on a step, at least 1."""
    shift = max(0, step // STEPS - 1)
    return max(1, (step - STEPS * shift) << shift)


def factor_at(step: int, known: Sequence[tuple[int, float]]) -> float:
    """How many times as long as a measured item an item on a step may take.

    Between two known steps the factor is interpolated linearly and by a power law, and the lower
    value is used. Items larger than all known ones are assumed to take as long as the largest, and
    smaller ones in proportion to their size. The guesses are low because an item thought too slow
    would be refused, and nothing would be learned of it.

    Args:
        step: The step.
        known: Steps in ascending order, with their factors; at least one.
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
    """Latency of items of one size as a function of batch size.

    Args:
        offer: The offer whose latency it is.
        step: The size.
        family: The curves of the other sizes.

    Attributes:
        step: The size.
        factor: How many times as long as the measured ones its items took, when that was last
            determined; None before any ran.
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
        """Whether such items have run and what they told has been doubted since."""
        return self._doubted > 0

    def suppose(self, guess: float) -> None:
        """Replaces the guess; for a curve none of whose items has run."""
        self._guess = guess
        self._start_from(guess)

    def observe(self, batch: int, sample_ns: int, now_ns: int, together: int = 1) -> None:
        """Learns from one finished batch."""
        super().observe(batch, sample_ns, now_ns, together)
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
        """When what was learned becomes stale, or the fallback after that doubted."""
        return self._doubted_ns if self._observed_ns is None else super().stale_ns()

    def forget(self) -> None:
        """Falls back to the lowest factor so far and, once that is doubted, to a guess."""
        self._found = 0
        observed_ns = self._observed_ns
        if observed_ns is not None:
            self._doubted_ns = observed_ns + self._stale_wait_ns - STALE_NS + self._believed_ns
            self._scale = self._guess if self._least is None else self._least
        else:
            self._doubted = self._least or self._guess
            self._doubted_ns = self._least = self.factor = None
            self._believed_ns = longer_ns(self._believed_ns)
            self._recent.clear()
            self._guess = self._scale = self._family.guess(self)
        super().forget()
        if observed_ns is None:  # guesses for sizes that never ran were based on it
            self._family.guess_anew(tried=False)

    def _start_from(self, factor: float) -> None:
        self._scale = factor
        self._seed()

    def _profile(self, size: int) -> tuple[int, ...]:
        """Scales the median; noise keeps its absolute size, or shrinks with smaller items."""
        measured_ns = self.offer.latency_ns[size]
        median_ns = drift.median(measured_ns)
        middle_ns, spread = self._scale * median_ns, min(1.0, self._scale)
        return tuple([max(1, round(middle_ns + spread * (ns - median_ns))) for ns in measured_ns])


class SizedCurves:
    """The curves of one offer, for items of every size.

    Args:
        measured: The curve of the measured size.
    """

    def __init__(self, measured: LatencyCurve) -> None:
        """Starts with the measured size alone."""
        self._measured = measured
        self._at = step_of(measured.offer.elements(measured.offer.item_shapes))
        self._others: dict[int, SizedCurve] = {}

    def curve(self, shapes: Shapes) -> LatencyCurve:
        """The curve for items of these shapes."""
        step = step_of(self._measured.offer.elements(shapes))
        if step == self._at:
            return self._measured
        curve = self._others.get(step)
        if curve is None:
            curve = self._others[step] = SizedCurve(self._measured.offer, step, self)
        return curve

    def all(self) -> Iterable[LatencyCurve]:
        """The measured curve, and those that were asked for, by size.

        Not in the order in which they were asked for: what one falls back to may depend on those
        before it, and others than the core ask too.
        """
        return [self._measured, *[self._others[step] for step in sorted(self._others)]]

    def guess_anew(self, tried: bool = True) -> None:
        """Updates the guesses of the curves of which nothing has run, or only long ago.

        Args:
            tried: Whether to include curves of which something ran long ago.
        """
        for curve in self._others.values():
            if curve.factor is None and (tried or not curve.was_tried):
                curve.suppose(self.guess(curve))

    def guess(self, curve: SizedCurve) -> float:
        """The factor that a size may have, judging by the other sizes."""
        return factor_at(curve.step, self.known(but=curve))

    def known(self, but: SizedCurve | None = None) -> list[tuple[int, float]]:
        """The known factor of each size, in the form that `factor_at` takes."""
        others = [each for each in self._others.values() if each is not but]
        found = [(each.step, each.factor) for each in others if each.factor is not None]
        return sorted([*found, (self._at, 1.0)])
