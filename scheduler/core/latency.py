"""How long each target takes for each batch: measured, learned, answered as quantiles."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

from scheduler.core.offers import Offer

WINDOW = 64
"""Samples kept per batch size."""

STALE_NS = 2_000_000_000
"""A prediction that nothing has confirmed for so long falls back to the profile, so that a bad
spell can't make a target look too slow to be tried ever again."""


class _Window:
    """The last samples of one batch size, in order of age and in order of size."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        self._aged = deque(seed[:: ceil(len(seed) / WINDOW)])
        self._sorted = sorted(self._aged)

    def add(self, sample_ns: int) -> None:
        if len(self._aged) >= WINDOW:
            del self._sorted[bisect_left(self._sorted, self._aged.popleft())]
        self._aged.append(sample_ns)
        insort(self._sorted, sample_ns)

    def quantile(self, quantile: float) -> int:
        return self._sorted[min(len(self._sorted) - 1, int(quantile * len(self._sorted)))]


class LatencyCurve:
    """Latency of one variant on one target over batch size.

    Predictions never fall as the batch grows (isotonic), and a batch size between two measured
    ones costs as much as the larger.
    """

    def __init__(self, offer: Offer) -> None:
        """Starts from the offer's measured profile."""
        self.batch_sizes = tuple(sorted(offer.latency_ns))
        self._offer = offer
        self._tables: dict[float, list[int]] = {}
        self._observed_ns: int | None = None
        self._seed()

    def _seed(self) -> None:
        self._windows = [_Window(self._offer.latency_ns[size]) for size in self.batch_sizes]
        self._tables.clear()

    def predict(self, batch: int, quantile: float) -> int:
        """Nanoseconds within which a share `quantile` of such batches is done.

        Raises:
            ValueError: The batch is larger than any that was measured.
        """
        table = self._tables.get(quantile)
        if table is None:
            table = self._tables[quantile] = self._tabulate(quantile)
        if not 0 < batch < len(table):
            raise ValueError(f"a batch has 1 to {len(table) - 1} items here, not {batch}")
        return table[batch]

    def _tabulate(self, quantile: float) -> list[int]:
        table = [0]
        for size, window in zip(self.batch_sizes, self._windows, strict=True):
            value = max(table[-1], window.quantile(quantile))
            table.extend([value] * (size + 1 - len(table)))
        return table

    def observe(self, batch: int, sample_ns: int, now_ns: int) -> None:
        """Learns from one finished batch."""
        self._windows[bisect_left(self.batch_sizes, batch)].add(sample_ns)
        self._observed_ns = now_ns
        self._tables.clear()

    def refresh(self, now_ns: int) -> None:
        """Forgets what was learned when nothing has confirmed it for `STALE_NS`."""
        if self._observed_ns is not None and now_ns - self._observed_ns > STALE_NS:
            self._observed_ns = None
            self._seed()
