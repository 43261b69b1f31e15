"""How many batches a target is given at once: as many as it takes without queueing them."""

from __future__ import annotations

from collections.abc import Hashable
from math import log10

LEAST_WINDOW_NS = 30_000_000_000
"""A latency that was not seen again for up to twice so long is no longer what is possible."""


class VegasLimit:
    """A concurrency limit that follows latency.

    Of a limit `L`, about `L * (1 - least / latency)` batches are waiting at the target rather
    than running. The limit rises while that is few and falls when it is many.

    Source: L. S. Brakmo, L. L. Peterson, "TCP Vegas", IEEE JSAC 13(8), 1995, as used for servers
    by Netflix' concurrency-limits, from which the thresholds come.

    Args:
        first: Where it begins.
        most: It never gets higher.

    Attributes:
        most: It never gets higher.
    """

    def __init__(self, first: int, most: int) -> None:
        """At its first value."""
        self.most = most
        self._limit = float(min(first, most))

    @property
    def value(self) -> int:
        """How many batches at once; 1 or more."""
        return int(self._limit)

    def observe(self, latency_ns: int, least_ns: int, in_flight: int) -> None:
        """Learns from a batch that is done.

        Args:
            latency_ns: How long it took.
            least_ns: How long such a batch takes at least, when nothing else is there.
            in_flight: How many were at the target when it was sent, itself included.
        """
        if 2 * in_flight < self._limit:
            return  # the target was not put to the test
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
        """The target refused or lost a batch: it has too many."""
        self._limit = max(1.0, self._limit * 0.9 - 0.5)


class Least:
    """The least latency by kind of batch, over a sliding time."""

    def __init__(self) -> None:
        """Has seen nothing."""
        self._now: dict[Hashable, int] = {}
        self._before: dict[Hashable, int] = {}
        self._since_ns = 0

    def observe(self, kind: Hashable, latency_ns: int, now_ns: int) -> int:
        """Takes a sample in; the least of its kind."""
        if now_ns - self._since_ns > LEAST_WINDOW_NS:
            self._before, self._now, self._since_ns = self._now, {}, now_ns
        least_ns = min(latency_ns, self._now.get(kind, latency_ns))
        self._now[kind] = least_ns
        return min(least_ns, self._before.get(kind, least_ns))
