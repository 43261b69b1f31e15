"""How long each target takes for each batch: measured, learned, answered as quantiles."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import ceil

from scheduler.core.offers import Offer

WINDOW = 64
"""Samples kept per batch size."""

STALE_NS = 2_000_000_000
"""A prediction that nothing has confirmed for so long falls back to the profile, so that a bad
spell can't make a target look too slow to be tried ever again."""

NOISE_SHIFT = 7
"""A quantile that moved by less than 1/128 counts as the same, so that what is derived from a
prediction need not be derived anew after every batch."""

_GOLDEN = 0.6180339887498949


def _shuffled(samples: tuple[int, ...]) -> list[int]:
    """The samples so that each stretch of them holds small and large ones alike."""
    order = sorted(range(len(samples)), key=lambda i: i * _GOLDEN % 1)
    return [samples[i] for i in order]


class _Window:
    """The last samples of one batch size, in order of age and in order of size."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        samples = sorted(seed)
        self._aged = deque(_shuffled(tuple(samples[:: ceil(len(samples) / WINDOW)])))
        self._sorted = sorted(self._aged)

    def add(self, sample_ns: int) -> None:
        if len(self._aged) >= WINDOW:
            del self._sorted[bisect_left(self._sorted, self._aged.popleft())]
        self._aged.append(sample_ns)
        insort(self._sorted, sample_ns)

    def quantile(self, quantile: float) -> int:
        return self._sorted[min(len(self._sorted) - 1, int(quantile * len(self._sorted)))]


@dataclass(frozen=True, slots=True)
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


class LatencyCurve:
    """Latency of one variant on one target over batch size.

    Predictions never fall as the batch grows (isotonic), and a batch size between two measured
    ones costs as much as the larger.

    Attributes:
        offer: Whose latency it is.
        batch_sizes: Those that were measured, ascending.
        version: Rises whenever a prediction that was asked for changes.
    """

    def __init__(self, offer: Offer) -> None:
        """Starts from the offer's measured profile."""
        self.offer = offer
        self.version = 0
        self.batch_sizes = tuple(sorted(offer.latency_ns))
        self._ladders: dict[float, Ladder] = {}
        self._rungs: dict[float, list[int]] = {}
        self._observed_ns: int | None = None
        self._seed()

    def _seed(self) -> None:
        self._windows = [_Window(self.offer.latency_ns[size]) for size in self.batch_sizes]
        self.version += 1
        self._ladders.clear()
        self._rungs.clear()

    def ladder(self, quantile: float) -> Ladder:
        """Within which time a share `quantile` of the batches of each size is done."""
        ladder = self._ladders.get(quantile)
        if ladder is None:
            ladder = self._ladders[quantile] = self._climb(quantile)
        return ladder

    def _climb(self, quantile: float) -> Ladder:
        rungs = self._rungs.get(quantile)
        if rungs is None:
            rungs = self._rungs[quantile] = [w.quantile(quantile) for w in self._windows]
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

    def observe(self, batch: int, sample_ns: int, now_ns: int) -> None:
        """Learns from one finished batch."""
        rung = bisect_left(self.batch_sizes, batch)
        window = self._windows[rung]
        window.add(sample_ns)
        self._observed_ns = now_ns
        for quantile, rungs in self._rungs.items():
            rung_ns = window.quantile(quantile)
            if abs(rung_ns - rungs[rung]) > rungs[rung] >> NOISE_SHIFT:
                rungs[rung] = rung_ns
                self._ladders.pop(quantile, None)
                self.version += 1

    def stale_ns(self) -> int | None:
        """When what was learned is stale, unless it is confirmed; None if nothing was learned."""
        return None if self._observed_ns is None else self._observed_ns + STALE_NS + 1

    def forget(self) -> None:
        """Falls back to the profile."""
        self._observed_ns = None
        self._seed()
