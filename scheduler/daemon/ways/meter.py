"""Measures a way from live traffic and probes: round trip, jitter, loss and bandwidth."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from scheduler.daemon.figures import milliseconds
from scheduler.daemon.ways.busy_period import BusyPeriod
from scheduler.daemon.ways.samples import AT_LEAST, ROUND_TRIPS, Extreme, Recent, Window

NOW_NS = 1_000_000_000
"""The current round trip is taken from the last second. Were it taken from a fixed number of
samples, however old, a way that was slow under load would count as slow for as many probes, or half
a minute; and a way that counts as too slow is sent nothing that could correct this."""

BULK_NS = 10_000_000_000
"""Bandwidth is taken from the large messages of this window. Without it, after a slow spell with no
traffic since, the first new sample would long be outweighed by old ones."""

BULK_BYTES = 65_536
"""A message of at least this size measures the bandwidth, and so does ..."""

_BULK_ROUND_TRIPS = 2
"""... one whose bytes are expected to take more than this many round trips, as on a slow link."""

SMALL_BYTES = 8_192
"""Other messages below this size measure the round trip. Those in between measure the bandwidth
while there are no larger ones: on a fast way less well, since much of their time is no transfer,
but there it matters little. On a slow one they would make the round trip look long. Small ones
on a slow way do the same: a way that is limited by a token bucket, as by a router that shapes
traffic, lets single ones through at once, and many of them would outvote large ones."""

_TRIAL_NS = 50_000_000
"""A message sent only to measure the bandwidth may hold up others for this long ..."""

_TRIAL_BYTES = 4_096
"""... but has at least this many bytes: enough to measure with, and no burden among messages."""

_LOWER = 0.25
"""The quantile of the time per byte that is used, and of the round trips that are part of such
samples: slower ones had to wait for something else."""

_SLOWED = 1.5
"""Once the last few samples all exceed that quantile by this factor, the way has become slower, and
what was measured before is forgotten. Otherwise it would count for half of `BULK_NS` or more, and
what is sent meanwhile would be late."""

_MATERIAL = 0.2
"""The way counts as changed if a message of 100 KB takes longer or shorter by this share ..."""

_MATERIAL_NS = 1_000_000
"""... and by this time."""

_TYPICAL_BYTES = 100_000


class WayMeter:
    """Measures one way.

    Probes and small messages measure the round trip. Larger messages measure the bandwidth if the
    far end says how long it had them: the rest of their time, less the round trip, was spent on
    their bytes. That is the least that the lower quartile of round trips has been lately: others
    may be longer because of those very bytes.

    Args:
        byte_ns: Transfer time per byte, until it is measured; 0 leaves it to the scheduler's
            latency curve, which counts it as execution.
        clock_ns: A monotonic clock.

    Attributes:
        round_trip_ns: The current median round trip; 0 before the first.
        byte_ns: The transfer time per byte.
        sent_bytes: Total bytes sent.
        received_bytes: Total bytes received.
    """

    def __init__(
        self, byte_ns: float = 0.0, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Nothing is measured yet."""
        self.round_trip_ns = 0
        self.byte_ns = byte_ns
        self.sent_bytes = 0
        self.received_bytes = 0
        self._clock_ns = clock_ns
        self._round_trips, self._ways = Recent(), Recent()
        self._now = Window(NOW_NS)
        self._slowest, self._quickest = Extreme(max), Extreme(min)
        self._bulk = Window(BULK_NS)
        self._middling = Window(BULK_NS)
        self._busy = BusyPeriod()
        self._answered: deque[bool] = deque(maxlen=ROUND_TRIPS)
        self._told_ns = 0

    # -- learning

    def round_trip(self, took_ns: int, bytes_ns: int = 0) -> None:
        """Records the round trip of a small message, less the time that its bytes took."""
        now_ns = self._clock_ns()
        self._ways.add(float(took_ns))
        self._quickest.add(int(self._ways.quantile(_LOWER)), now_ns)
        took_ns = max(0, took_ns - bytes_ns)
        self._round_trips.add(float(took_ns))
        self._slowest.add(took_ns, now_ns)
        self._now.add(float(took_ns), now_ns)
        self.round_trip_ns = int(self._now.quantile(0.5))
        self._answered.append(True)

    def lost(self) -> None:
        """Records a small message that was not answered in time."""
        self._answered.append(False)

    def carried(
        self, sent: int, received: int, way_ns: int | None, sent_ns: int | None = None
    ) -> bool:
        """Records an answered message; returns whether it measured the round trip.

        Args:
            sent: Bytes of the message.
            received: Bytes of the answer.
            way_ns: Its total time less the time at the far end; None if the far end does not say.
            sent_ns: When it was sent, on the clock; None if nothing else was in flight.
        """
        self.sent_bytes += sent
        self.received_bytes += received
        if way_ns is None:
            return False
        size = sent + received
        tells = self.is_bulk(size)
        if tells and size >= SMALL_BYTES:
            window = self._bulk
        elif tells or size >= SMALL_BYTES:
            window = self._middling
        else:
            self.round_trip(way_ns, int(self.byte_ns * size))
            return True
        if self._round_trips:
            bytes_ns = max(0, way_ns - self._quickest.value_ns)
            self._carried_much(window, sent, received, bytes_ns, sent_ns)
        return False

    def _carried_much(
        self, window: Window, sent: int, received: int, bytes_ns: int, sent_ns: int | None
    ) -> None:
        """Records how long the bytes of a message took."""
        now_ns = self._clock_ns()
        if sent_ns is None:
            sent_ns = now_ns - bytes_ns
            self._busy.ended_by(sent_ns)
        byte_ns = self._busy.carried(sent, received, sent_ns, sent_ns + bytes_ns)
        if byte_ns is None:
            return
        window.add(byte_ns, now_ns)
        window.forget_lower(_SLOWED * window.quantile(_LOWER))
        stands_in = len(window) >= AT_LEAST and not self._bulk.is_fresh(now_ns)
        if window is self._bulk or stands_in:
            self.byte_ns = window.quantile(_LOWER)

    def is_bulk(self, size_bytes: int) -> bool:
        """Whether a message of this size measures the bandwidth rather than the round trip."""
        bytes_ns = self.byte_ns * size_bytes
        return size_bytes >= BULK_BYTES or bytes_ns > _BULK_ROUND_TRIPS * self.round_trip_ns > 0

    def trial_bytes(self, most: int) -> int:
        """The size of a probe that measures the bandwidth and holds up little; at most `most`."""
        if not self.byte_ns:
            return min(most, BULK_BYTES)
        telling_ns = (_BULK_ROUND_TRIPS + 1) * self.round_trip_ns
        telling = min(BULK_BYTES, telling_ns / self.byte_ns)
        return min(most, int(max(_TRIAL_BYTES, _TRIAL_NS / self.byte_ns, telling)))

    # -- figures

    @property
    def slow_round_trip_ns(self) -> int:
        """The longest recent round trip; 0 before the first."""
        return self._slowest.value_ns

    @property
    def jitter_ns(self) -> int:
        """The difference between the p95 and the median of the round trips."""
        return int(self._round_trips.quantile(0.95) - self._round_trips.quantile(0.5))

    @property
    def loss(self) -> float:
        """The share of the latest small messages that were not answered in time."""
        return 1 - sum(self._answered) / len(self._answered) if self._answered else 0.0

    def transfer_ns(self) -> tuple[int, float]:
        """The time of the way there, per message and per byte; as in `TargetSpec`."""
        return self.round_trip_ns // 2, self.byte_ns

    @property
    def back_ns(self) -> int:
        """The time of the way back, for a small answer."""
        return self.round_trip_ns - self.round_trip_ns // 2

    def both_ways_ns(self, size_bytes: int) -> int:
        """The time of the way there and back, for a message of this size."""
        return self.round_trip_ns + int(self.byte_ns * size_bytes)

    def moved(self) -> bool:
        """Whether the way has changed materially since this last returned True."""
        typical_ns = self.both_ways_ns(_TYPICAL_BYTES)
        apart_ns = abs(typical_ns - self._told_ns)
        if apart_ns < _MATERIAL_NS or apart_ns < _MATERIAL * self._told_ns:
            return False
        self._told_ns = typical_ns
        return True

    def describe(self) -> dict[str, Any]:
        """The figures, for people and programs; bandwidth is None until it is known."""
        byte_ns = self.byte_ns
        return {
            "round_trip_ms": milliseconds(self.round_trip_ns),
            "jitter_ms": milliseconds(self.jitter_ns),
            "loss": round(self.loss, 4),
            "bandwidth_mbps": round(8e3 / byte_ns, 3) if byte_ns else None,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }
