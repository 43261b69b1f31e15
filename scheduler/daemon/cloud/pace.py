"""How often the way to a server is probed, and how long each probe may take."""

from __future__ import annotations

import time

from scheduler.daemon.ways.meter import WayMeter

_IN_USE_NS, _IN_USE_S = 10_000_000_000, 0.1
"""For this long after a batch, the way is probed this often unless answers measure it. They may
not: a way that counts as too slow gets no batches, and some servers do not report their time."""

_LEAST_PATIENCE_S = 0.05
"""Least timeout of a probe."""

_RETRY_S = 1.2
"""Least timeout of a probe on a new connection: a lost first packet is resent after a second
(RFC 6298)."""


class ProbePace:
    """When to probe one way.

    Args:
        idle_s: Interval between probes while nothing is sent.
        meter: The measurements of the way.
    """

    def __init__(self, idle_s: float, meter: WayMeter) -> None:
        """Nothing has been sent yet."""
        self._idle_s = idle_s
        self._meter = meter
        self._sent_ns = -_IN_USE_NS

    def sent(self, now_ns: int) -> None:
        """Notes that a batch was sent."""
        self._sent_ns = now_ns

    def every_s(self) -> float:
        """The interval between probes."""
        in_use = time.monotonic_ns() - self._sent_ns < _IN_USE_NS
        return min(_IN_USE_S, self._idle_s) if in_use else self._idle_s

    def patience_s(self) -> float:
        """The timeout of a probe."""
        return max(_LEAST_PATIENCE_S, 2 * self._meter.slow_round_trip_ns / 1e9)

    def retry_s(self) -> float:
        """The timeout of a probe on a new connection."""
        return max(_RETRY_S, 4 * self._meter.slow_round_trip_ns / 1e9)
