"""A concurrency limit: how many batches a target can be given without queueing them."""

from __future__ import annotations

from collections.abc import Hashable
from math import log10

LEAST_WINDOW_NS = 30_000_000_000
"""The least latency is forgotten if it is not seen again for one to two such windows."""


class VegasLimit:
    """A concurrency limit that follows latency.

    With a limit `L`, about `L * (1 - least / latency)` batches are queued at the target rather
    than running. The limit rises while these are few and falls when they are many.

    Source: L. S. Brakmo, L. L. Peterson, "TCP Vegas", IEEE JSAC 13(8), 1995, as used for servers
    by Netflix' concurrency-limits, from which the thresholds come.

    Args:
        first: Initial value.
        most: Upper bound.

    Attributes:
        most: Upper bound.
    """

    def __init__(self, first: int, most: int) -> None:
        """Starts at the initial value."""
        self.most = most
        self._limit = float(min(first, most))

    @property
    def value(self) -> int:
        """How many batches may be in flight; at least 1."""
        return int(self._limit)

    def observe(self, latency_ns: int, least_ns: int, in_flight: int) -> None:
        """Learns from a finished batch.

        Args:
            latency_ns: How long it took.
            least_ns: The least time that such a batch takes, on an idle target.
            in_flight: How many batches were in flight when it was sent, including itself.
        """
        if 2 * in_flight < self._limit:
            return  # too few batches to test the limit
        limit, step = self._limit, max(1.0, log10(self._limit))
        waiting = limit * (1 - least_ns / max(latency_ns, least_ns))
        if waiting <= step:
            limit += step
        elif waiting < 3 * step:
            limit += 1
        elif waiting > 6 * step:
            limit -= step
        self._limit = min(max(1.0, limit), float(self.most))

    def dropped(self) -> None:
        """Lowers the limit: the target refused or lost a batch, so it had too many."""
        self._limit = max(1.0, self._limit * 0.9 - 0.5)


class Least:
    """The least latency per kind of batch, over a sliding window."""

    def __init__(self) -> None:
        """Has no samples."""
        self._now: dict[Hashable, int] = {}
        self._before: dict[Hashable, int] = {}
        self._since_ns = 0

    def observe(self, kind: Hashable, latency_ns: int, now_ns: int) -> int:
        """Adds a sample; returns the least latency of its kind."""
        if now_ns - self._since_ns > LEAST_WINDOW_NS:
            self._before, self._now, self._since_ns = self._now, {}, now_ns
        least_ns = min(latency_ns, self._now.get(kind, latency_ns))
        self._now[kind] = least_ns
        return min(least_ns, self._before.get(kind, least_ns))
