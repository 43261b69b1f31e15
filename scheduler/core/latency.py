"""How long each target takes for each batch: measured, learned, answered as quantiles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from math import ceil
from typing import NamedTuple

from scheduler.core import conformal, drift
from scheduler.core.offers import Offer
from scheduler.core.values import sealed

WINDOW = 256
"""Samples kept per batch size: enough for a 99 % quantile that isn't simply the largest."""

SHAPE = 64
"""Samples kept of a history that drift has ended, moved to the new level: they say how latency
spreads until enough new ones do."""

STALE_NS = 2_000_000_000
"""A prediction that nothing has confirmed for so long falls back to the profile, so that a bad
spell can't make a target look too slow to be tried ever again."""

NOISE_SHIFT = 7
"""A quantile that moved by less than 1/128 counts as the same, so that what is derived from a
prediction need not be derived anew after every batch."""

QUANTILES = 16
"""Quantiles of a curve that are kept up to date; the oldest gives way to another."""

_TRAIL = 64
"""Batches that are remembered in the order in which they were done."""

_ENOUGH = 5
"""So many samples say alone to which level a batch size has moved."""

_GOLDEN = 0.6180339887498949


def _shuffled(samples: list[int]) -> list[int]:
    """The samples so that each stretch of them holds small and large ones alike."""
    order = sorted(range(len(samples)), key=lambda i: i * _GOLDEN % 1)
    return [samples[i] for i in order]


class _Window:
    """The last samples of one batch size, in order of age and in order of size."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        samples = sorted(seed)
        self._aged = deque(_shuffled(samples[:: ceil(len(samples) / WINDOW)]))
        self._sorted = sorted(self._aged)

    def add(self, sample_ns: int) -> float:
        """Takes a sample in and says how far from the middle of the others it lies."""
        samples = self._sorted
        below = bisect_left(samples, sample_ns)
        equal = bisect_right(samples, sample_ns, below) - below
        deviation = drift.deviation(below, equal, len(samples))
        if len(samples) >= WINDOW:
            del samples[bisect_left(samples, self._aged.popleft())]
        self._aged.append(sample_ns)
        insort(samples, sample_ns)
        return deviation

    def quantile(self, aim: float) -> int:
        """What a share `aim` of such batches takes longer than."""
        samples = self._sorted
        return samples[conformal.rank(len(samples), aim)]

    def ratios(self, recent: int) -> list[float]:
        """The most recent samples, as multiples of the median of those before them."""
        aged = list(self._aged)
        split = max(1, len(aged) - recent)
        before = drift.median(aged[:split])
        return [sample / before for sample in aged[split:]]

    def shift(self, recent: int, ratio: float) -> None:
        """Moves all but the most recent samples to another level, and keeps few of them."""
        aged = list(self._aged)
        split = max(1, len(aged) - recent)
        old, count = sorted(aged[:split]), min(split, SHAPE)
        thinned = [old[(2 * i + 1) * split // (2 * count)] for i in range(count)]
        moved = [max(1, round(sample * ratio)) for sample in thinned]
        self._aged = deque([*_shuffled(moved), *aged[split:]])
        self._sorted = sorted(self._aged)


@sealed(frozen=True, slots=True)
class Ladder:
    """One quantile of a latency curve, as parallel tuples over the batch sizes, ascending.

    Attributes:
        sizes: The batch sizes that may be sent, 1 first.
        latency_ns: How long each takes; never falls.
        rate: The most requests per nanosecond with batches up to that size.
    """

    sizes: tuple[int, ...]
    latency_ns: tuple[int, ...]
    rate: tuple[float, ...]


class Calibration(NamedTuple):
    """How well one quantile of a curve was kept.

    Attributes:
        promised: The quantile.
        batches: How many were done since the curve exists.
        kept: How many of them within it.
    """

    promised: float
    batches: int
    kept: int

    @property
    def observed(self) -> float:
        """The share of batches that were done within the quantile; 0 before the first."""
        return self.kept / self.batches if self.batches else 0.0


class _Promise:
    """One quantile of a curve, as far as it was asked for, and how well it is kept.

    Attributes:
        misses: The share of batches that may take longer.
        aims: By batch size, the share of misses to aim at.
        rungs: By batch size, what is predicted; None until it is derived anew.
        ladder: The predictions; None until they are derived anew.
        given: What was last predicted.
        batches: How many were done.
        kept: How many of them within what was predicted.
    """

    __slots__ = ("aims", "batches", "given", "kept", "ladder", "misses", "rungs")

    def __init__(self, quantile: float, sizes: int) -> None:
        self.misses = 1 - quantile
        self.aim_as_promised(sizes)
        self.rungs: list[int] | None = None
        self.ladder: Ladder | None = None
        self.given: Ladder | None = None
        self.batches = 0
        self.kept = 0

    def aim_as_promised(self, sizes: int) -> None:
        """Takes the margins back."""
        self.aims = [self.misses] * sizes

    def check(self, rung: int, sample_ns: int) -> None:
        """Compares a batch with what was said last of its size, and adapts the margin."""
        if self.given is None:
            return
        missed = sample_ns > self.given.latency_ns[rung]
        self.batches += 1
        self.kept += not missed
        self.aims[rung] = conformal.adapted(self.aims[rung], self.misses, missed)

    def refresh(self, rung: int, window: _Window) -> bool:
        """Takes in that a window has changed; whether that changes what was predicted."""
        if self.rungs is None:
            return False
        rung_ns, known_ns = window.quantile(self.aims[rung]), self.rungs[rung]
        if abs(rung_ns - known_ns) <= known_ns >> NOISE_SHIFT:
            return False
        self.rungs[rung] = rung_ns
        changed = self.ladder is not None
        self.ladder = None
        return changed


class LatencyCurve:
    """Latency of one variant on one target over batch size.

    Predictions never fall as the batch grows (isotonic), and a batch size between two measured
    ones costs as much as the larger.

    Attributes:
        offer: Whose latency it is.
        batch_sizes: Those that were measured, ascending.
        version: Rises whenever a prediction that was asked for changes.
        drifts: How often latency has moved to another level.
    """

    def __init__(self, offer: Offer) -> None:
        """Starts from the offer's measured profile."""
        self.offer = offer
        self.version = 0
        self.drifts = 0
        self.batch_sizes = tuple(sorted(offer.latency_ns))
        self._promises: dict[float, _Promise] = {}
        self._observed_ns: int | None = None
        self._seed()

    def _seed(self) -> None:
        self._windows = [_Window(self._profile(size)) for size in self.batch_sizes]
        self._start_anew()

    def _profile(self, size: int) -> tuple[int, ...]:
        """What batches of a size are taken to need before any was seen."""
        return self.offer.latency_ns[size]

    def _start_anew(self) -> None:
        """Derives all predictions from the windows alone, and watches for drift from now on."""
        self.version += 1
        for promise in self._promises.values():
            promise.rungs = promise.ladder = None
        self._slower = self._faster = 0.0
        self._slower_since = self._faster_since = 0
        self._trail: deque[int] = deque(maxlen=_TRAIL)

    # -- predictions

    def ladder(self, quantile: float) -> Ladder:
        """Within which time a share `quantile` of the batches of each size is done."""
        promise = self._promises.get(quantile)
        if promise is None:
            promise = self._promise(quantile)
        ladder = promise.ladder
        if ladder is None:
            ladder = promise.ladder = promise.given = self._climb(promise)
        return ladder

    def _promise(self, quantile: float) -> _Promise:
        if len(self._promises) >= QUANTILES:
            del self._promises[next(iter(self._promises))]
        promise = self._promises[quantile] = _Promise(quantile, len(self.batch_sizes))
        return promise

    def _climb(self, promise: _Promise) -> Ladder:
        rungs = promise.rungs
        if rungs is None:
            pairs = zip(self._windows, promise.aims, strict=True)
            rungs = promise.rungs = [window.quantile(aim) for window, aim in pairs]
        latencies: list[int] = []
        rates: list[float] = []
        latency_ns, rate = 1, 0.0
        for size, rung_ns in zip(self.batch_sizes, rungs, strict=True):
            latency_ns = max(latency_ns, rung_ns)
            rate = max(rate, size / latency_ns)
            latencies.append(latency_ns)
            rates.append(rate)
        return Ladder(self.batch_sizes, tuple(latencies), tuple(rates))

    def predict(self, batch: int, quantile: float) -> int:
        """Nanoseconds within which a share `quantile` of such batches is done.

        Raises:
            ValueError: The batch is larger than any that was measured.
        """
        if not 0 < batch <= self.batch_sizes[-1]:
            raise ValueError(f"a batch has 1 to {self.batch_sizes[-1]} items here, not {batch}")
        return self.ladder(quantile).latency_ns[bisect_left(self.batch_sizes, batch)]

    def alone_ns(self, quantile: float) -> int:
        """As `predict` for a single item, by who promises nothing: no margin, no calibration."""
        return self._windows[0].quantile(1 - quantile)

    def spread_ns(self, batch: int) -> int:
        """By how much the slowest of twenty such batches takes longer than a median one."""
        window = self._windows[bisect_left(self.batch_sizes, batch)]
        return window.quantile(0.05) - window.quantile(0.5)

    def usual_rung(self) -> int:
        """Which of the batch sizes ran most of late; the smallest before any did."""
        return max(range(len(self.batch_sizes)), key=self._trail.count)

    # -- learning

    def observe(self, batch: int, sample_ns: int, now_ns: int) -> None:
        """Learns from one finished batch."""
        rung = bisect_left(self.batch_sizes, batch)
        sample_ns = max(1, sample_ns)  # a clock may not have moved on
        self._observed_ns = now_ns
        window = self._windows[rung]
        promises = self._promises.values()
        for promise in promises:
            promise.check(rung, sample_ns)
        if self._has_drifted(rung, window.add(sample_ns)):
            self._follow()
        else:
            for promise in promises:
                if promise.refresh(rung, window):
                    self.version += 1

    def _has_drifted(self, rung: int, deviation: float) -> bool:
        self._trail.append(rung)
        self._slower, self._faster = slower, faster = drift.sums(
            self._slower, self._faster, deviation
        )
        self._slower_since = self._slower_since + 1 if slower else 0
        self._faster_since = self._faster_since + 1 if faster else 0
        return slower > drift.THRESHOLD or faster > drift.THRESHOLD

    def _follow(self) -> None:
        """Moves what was learned before the drift to the level of what came since.

        What slows a device down slows all batch sizes, so those that ran tell the level of those
        that did not.
        """
        slower = self._slower > self._faster
        since = min(self._slower_since if slower else self._faster_since, len(self._trail))
        ran = list(self._trail)[len(self._trail) - since :]
        recent = [ran.count(rung) for rung in range(len(self._windows))]
        found = [w.ratios(n) if n else [] for w, n in zip(self._windows, recent, strict=True)]
        common = drift.median([ratio for ratios in found for ratio in ratios])
        for window, count, ratios in zip(self._windows, recent, found, strict=True):
            window.shift(count, drift.median(ratios) if len(ratios) >= _ENOUGH else common)
        self.drifts += 1
        self._start_anew()

    def calibration(self) -> tuple[Calibration, ...]:
        """How well each quantile that is asked for was kept, in ascending order.

        A batch counts against what was predicted last before it was done.
        """
        promises = sorted(self._promises.items())
        return tuple([Calibration(q, each.batches, each.kept) for q, each in promises])

    def stale_ns(self) -> int | None:
        """When what was learned is stale, unless it is confirmed; None if nothing was learned."""
        return None if self._observed_ns is None else self._observed_ns + STALE_NS + 1

    def forget_stale(self, now_ns: int) -> bool:
        """Forgets what nothing has confirmed for long; whether there was such."""
        stale_ns = self.stale_ns()
        if stale_ns is None or now_ns < stale_ns:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Falls back to the profile, without a margin.

        What was refused for its margin alone brought nothing that could have changed it.
        """
        self._observed_ns = None
        for promise in self._promises.values():
            promise.aim_as_promised(len(self.batch_sizes))
        self._seed()
