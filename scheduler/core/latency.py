"""How long a target takes for a batch: measured, learned, and predicted as quantiles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from math import ceil
from typing import NamedTuple

from scheduler.core import conformal, drift
from scheduler.core.offers import Offer
from scheduler.core.values import sealed

WINDOW = 256
"""Samples kept per batch size: enough for a 99 % quantile below the largest sample."""

SHAPE = 64
"""Samples kept from before a drift, scaled to the new level: they give the spread of latency until
there are enough new samples."""

STALE_NS = 2_000_000_000
"""A prediction that nothing has confirmed for this long falls back to the profile, so that a slow
spell can't make a target look too slow to be tried ever again."""

STALE_RUNS = 10
"""The same as a multiple of the profile's latency, which counts if it is longer: nothing would be
learned of a model that takes seconds if each batch were forgotten before the next is done."""

IN_VAIN = 10
"""A target that idles while requests are refused for its latency is believed for this many times
that latency, if that is shorter than `STALE_NS`: 0.1 s of other work on its processor would
otherwise cost two seconds of requests. Twice as long each time that it is found as slow again."""

NOISE_SHIFT = 7
"""A quantile that moved by no more than 1/128 counts as unchanged, so that values derived from a
prediction need not be recomputed after every batch."""

QUANTILES = 16
"""How many quantiles of a curve are kept up to date; a further one replaces the oldest."""

_TRAIL = 64
"""How many of the last batches are remembered, in order of completion."""

_MOST_TRIES = 20
"""Enough for `STALE_NS` to be shorter, whatever the latency."""

_ENOUGH = 5
"""With this many samples since a drift, a batch size gets a new level of its own."""

_BEYOND = 4
"""How many times as long as its slowest batch a size that ran is taken to last after a drift. Where
latency changes to and fro, samples of the new level are among those from before the drift too, and
each drift would scale them once more."""

_GOLDEN = 0.6180339887498949


def _shuffled(samples: list[int]) -> list[int]:
    """The samples, reordered so that every stretch of them mixes small and large ones."""
    order = sorted(range(len(samples)), key=lambda i: i * _GOLDEN % 1)
    return [samples[i] for i in order]


class _Window:
    """The last samples of one batch size, in order of age and in order of value."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        samples = sorted(seed)
        self._aged = deque(_shuffled(samples[:: ceil(len(samples) / WINDOW)]))
        self._sorted = sorted(self._aged)
        self._slowest = samples[-1]

    def add(self, sample_ns: int) -> float:
        """Adds a sample and returns how far its rank among the others is from the middle."""
        self._slowest = max(self._slowest, sample_ns)
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
        """The latency that a share `aim` of such batches exceeds."""
        samples = self._sorted
        return samples[conformal.rank(len(samples), aim)]

    def ratios(self, recent: int) -> list[float]:
        """The most recent samples, as multiples of the median of those before them."""
        aged = list(self._aged)
        split = max(1, len(aged) - recent)
        before = drift.median(aged[:split])
        return [sample / before for sample in aged[split:]]

    def shift(self, recent: int, ratio: float) -> None:
        """Scales all but the most recent samples by a ratio, and keeps at most `SHAPE` of them."""
        aged = list(self._aged)
        split = max(1, len(aged) - recent)
        old, count = sorted(aged[:split]), min(split, SHAPE)
        thinned = [old[(2 * i + 1) * split // (2 * count)] for i in range(count)]
        moved = [max(1, round(sample * ratio)) for sample in thinned]
        if recent:
            moved = [min(sample, _BEYOND * self._slowest) for sample in moved]
        self._aged = deque([*_shuffled(moved), *aged[split:]])
        self._sorted = sorted(self._aged)


@sealed(frozen=True, slots=True)
class Ladder:
    """One quantile of a latency curve, as parallel tuples over the measured batch sizes, ascending.

    A number of requests between two sizes takes as long as the larger one.

    Attributes:
        sizes: The batch sizes, 1 first.
        latency_ns: How long a batch of each size takes; never decreases.
        rate: The highest throughput, in requests per nanosecond, with batches up to that size.
    """

    sizes: tuple[int, ...]
    latency_ns: tuple[int, ...]
    rate: tuple[float, ...]

    def pays(self, at: int, count: int) -> bool:
        """Whether so many requests should share a batch of the size at a place.

        They should if they fill it, or if no smaller batch does as much in the same time.
        """
        if count == self.sizes[at]:
            return True
        if not at or count <= self.sizes[at - 1]:
            return False
        return count > self.rate[at - 1] * self.latency_ns[at]

    def largest(self, waiting: int) -> tuple[int, int]:
        """The largest batch that pays, of at least one: the place of its size, and its number."""
        at = bisect_right(self.sizes, waiting)
        if at < len(self.sizes) and self.pays(at, waiting):
            return at, waiting
        return at - 1, self.sizes[at - 1]


class Calibration(NamedTuple):
    """How well the predictions of one quantile of a curve held.

    Attributes:
        promised: The quantile.
        batches: How many batches were done since the curve was made.
        kept: How many of them were done within the predicted time.
    """

    promised: float
    batches: int
    kept: int

    @property
    def observed(self) -> float:
        """The share of batches done within the predicted time; 0 before the first."""
        return self.kept / self.batches if self.batches else 0.0


class _Promise:
    """The predictions of one quantile of a curve, and how well they hold.

    Attributes:
        misses: The promised share of batches that may take longer.
        aims: The share of misses to aim at, per batch size.
        rungs: The predicted quantile per batch size; None until recomputed.
        ladder: The same made monotone; None until recomputed.
        given: The ladder that was last given out.
        batches: How many batches were done.
        kept: How many of them were done within the predicted time.
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
        """Resets the margins."""
        self.aims = [self.misses] * sizes

    def check(self, rung: int, sample_ns: int) -> None:
        """Compares a batch with the last prediction for its size, and adapts the margin."""
        if self.given is None:
            return
        missed = sample_ns > self.given.latency_ns[rung]
        self.batches += 1
        self.kept += not missed
        self.aims[rung] = conformal.adapted(self.aims[rung], self.misses, missed)

    def refresh(self, rung: int, window: _Window) -> bool:
        """Updates the prediction for a changed window; returns whether the ladder became void."""
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
    """Latency of one variant on one target as a function of batch size.

    Predictions never decrease as the batch grows (isotonic). A batch size between two measured ones
    takes as long as the larger.

    Attributes:
        offer: The offer whose latency it is.
        batch_sizes: The measured batch sizes, ascending.
        version: Increases whenever a prediction that was given out changes.
        drifts: How often latency has drifted to another level.
    """

    def __init__(self, offer: Offer) -> None:
        """Starts from the offer's measured profile."""
        self.offer = offer
        self.version = 0
        self.drifts = 0
        self.batch_sizes = tuple(sorted(offer.latency_ns))
        alone_ns = drift.median(offer.latency_ns[self.batch_sizes[0]])
        self._stale_wait_ns = max(STALE_NS, round(STALE_RUNS * alone_ns))
        self._promises: dict[float, _Promise] = {}
        self._observed_ns: int | None = None
        self._in_vain = False
        self._tries = self._ran = 0
        self._seed()

    def _seed(self) -> None:
        self._windows = [_Window(self._profile(size)) for size in self.batch_sizes]
        self._start_anew()

    def _profile(self, size: int) -> tuple[int, ...]:
        """The latency samples assumed for a batch size before any batch ran."""
        return self.offer.latency_ns[size]

    def _start_anew(self) -> None:
        """Discards all derived predictions, and restarts the drift test."""
        self.version += 1
        for promise in self._promises.values():
            promise.rungs = promise.ladder = None
        self._slower = self._faster = 0.0
        self._slower_since = self._faster_since = 0
        self._trail: deque[int] = deque(maxlen=_TRAIL)

    # -- predictions

    def ladder(self, quantile: float) -> Ladder:
        """The time within which a share `quantile` of the batches of each size is done."""
        promise = self._promises.get(quantile)
        if promise is None:
            promise = self._promise(quantile)
        ladder = promise.ladder
        if ladder is None:
            ladder = promise.ladder = promise.given = self._climb(promise)
        return ladder

    def glance(self, quantile: float) -> Ladder:
        """Like `ladder`, for others than the core and its policies.

        When they ask is in no journal, so nothing is noted that the curve learns from: a replay
        must learn the same.
        """
        known = self._promises.get(quantile)
        if known is not None and known.ladder is not None:
            return known.ladder
        unsaid = _Promise(quantile, len(self.batch_sizes))
        if known is not None:
            unsaid.aims, unsaid.rungs = known.aims, known.rungs
        return self._climb(unsaid)

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
        """The time in nanoseconds within which a share `quantile` of such batches is done.

        Raises:
            ValueError: The batch is larger than any that was measured.
        """
        if not 0 < batch <= self.batch_sizes[-1]:
            raise ValueError(f"a batch has 1 to {self.batch_sizes[-1]} items here, not {batch}")
        return self.ladder(quantile).latency_ns[bisect_left(self.batch_sizes, batch)]

    def alone_ns(self, quantile: float) -> int:
        """Like `predict` for a single item, but without a margin and outside calibration."""
        return self._windows[0].quantile(1 - quantile)

    def least_ns(self, batch: int) -> int:
        """The shortest time in which such a batch was ever measured, before any ran."""
        return min(self._profile(self.batch_sizes[bisect_left(self.batch_sizes, batch)]))

    def spread_ns(self, batch: int) -> int:
        """How much longer the slowest of twenty such batches takes than the median."""
        window = self._windows[bisect_left(self.batch_sizes, batch)]
        return window.quantile(0.05) - window.quantile(0.5)

    def usual_rung(self) -> int:
        """The index of the batch size that ran most often of late; 0 before any ran."""
        return max(range(len(self.batch_sizes)), key=self._trail.count)

    # -- learning

    def observe(self, batch: int, sample_ns: int, now_ns: int, together: int = 1) -> None:
        """Learns from one finished batch.

        Args:
            batch: Its number of items.
            sample_ns: How long it took.
            now_ns: The current time.
            together: How many ran there at once, this one among them (`drift`).
        """
        rung = bisect_left(self.batch_sizes, batch)
        sample_ns = max(1, sample_ns)  # the clock may not have advanced
        self._observed_ns = now_ns
        self._in_vain = False
        self._ran += 1
        if self._ran == _TRAIL:
            self._tries = 0
        window = self._windows[rung]
        promises = self._promises.values()
        for promise in promises:
            promise.check(rung, sample_ns)
        if self._has_drifted(rung, window.add(sample_ns), together):
            self._follow()
        else:
            for promise in promises:
                if promise.refresh(rung, window):
                    self.version += 1

    def _has_drifted(self, rung: int, deviation: float, together: int) -> bool:
        self._trail.append(rung)
        self._slower, self._faster = slower, faster = drift.sums(
            self._slower, self._faster, deviation, together
        )
        self._slower_since = self._slower_since + 1 if slower else 0
        self._faster_since = self._faster_since + 1 if faster else 0
        return slower > drift.THRESHOLD or faster > drift.THRESHOLD

    def _follow(self) -> None:
        """Scales the samples from before the drift to the level of those since.

        Whatever slows a device down slows all batch sizes, so the sizes that ran give the level for
        those that did not.
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
        """How well each quantile in use was kept, in ascending order.

        A batch is compared with the last prediction before it was done.
        """
        promises = sorted(self._promises.items())
        return tuple([Calibration(q, each.batches, each.kept) for q, each in promises])

    def stale_ns(self) -> int | None:
        """When what was learned becomes stale unless confirmed; None if nothing was learned."""
        if self._observed_ns is None:
            return None
        wait_ns = self._stale_wait_ns
        if self._in_vain:
            wait_ns = min(wait_ns, (IN_VAIN << self._tries) * self.alone_ns(0.5))
        return self._observed_ns + wait_ns + 1

    def forget_stale(self, now_ns: int) -> bool:
        """Forgets what was learned if it is stale; returns whether it was."""
        stale_ns = self.stale_ns()
        if stale_ns is None or now_ns < stale_ns:
            return False
        if self._in_vain:
            self._tries, self._ran = min(self._tries + 1, _MOST_TRIES), 0
        self.forget()
        return True

    def refused(self, budget_ns: int) -> None:
        """Learns that a request with this budget was refused while the target was idle."""
        if self._observed_ns is not None and not self._in_vain:
            longest_ns = max([self.ladder(q).latency_ns[0] for q in self._promises], default=0)
            self._in_vain = longest_ns > budget_ns

    def forget(self) -> None:
        """Falls back to the profile, without a margin.

        A margin that caused requests to be refused could not adapt, because nothing ran.
        """
        self._observed_ns = None
        self._in_vain = False
        for promise in self._promises.values():
            promise.aim_as_promised(len(self.batch_sizes))
        self._seed()
