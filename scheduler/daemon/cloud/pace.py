"""How often the way to a server is looked at, and how long each look may take."""

from __future__ import annotations

import time

from scheduler.daemon.ways.meter import WayMeter

_IN_USE_NS, _IN_USE_S = 10_000_000_000, 0.1
"""The way to a server that was sent something lately is probed so often, unless messages tell it:
what counts as too slow is sent nothing, and who does not say how long it took tells nothing."""

_LEAST_PATIENCE_S = 0.05
"""A probe has at least so long to come back."""

_RETRY_S = 1.2
"""A probe on a new connection has at least so long: a first packet that is lost is sent again
after a second (RFC 6298)."""


class ProbePace:
    """When to probe one way.

    Args:
        idle_s: How often where nothing is sent.
        meter: What is known of the way.
    """

    def __init__(self, idle_s: float, meter: WayMeter) -> None:
        """Nothing was sent yet."""
        self._idle_s = idle_s
        self._meter = meter
        self._sent_ns = -_IN_USE_NS

    def sent(self, now_ns: int) -> None:
        """A batch goes."""
        self._sent_ns = now_ns

    def every_s(self) -> float:
        """How long after the last look the next one is due."""
        in_use = time.monotonic_ns() - self._sent_ns < _IN_USE_NS
        return min(_IN_USE_S, self._idle_s) if in_use else self._idle_s

    def patience_s(self) -> float:
        """How long a look may take."""
        return max(_LEAST_PATIENCE_S, 2 * self._meter.slow_round_trip_ns / 1e9)

    def retry_s(self) -> float:
        """How long one on a new connection may take."""
        return max(_RETRY_S, 4 * self._meter.slow_round_trip_ns / 1e9)
