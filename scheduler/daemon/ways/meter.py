"""What a way is like: round trip, jitter, loss, bandwidth, as live traffic and probes show it."""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any

from scheduler.daemon.figures import milliseconds

ROUND_TRIPS = 32
"""Round trips that are remembered: of half a minute of probes, or the last of what was sent."""

NOW_NS = 1_000_000_000
"""Those of the last second tell how the way is now. Were it the last so many, however old, a way
that was slow while much was sent would count as slow until as many probes, or half a minute, say
otherwise; and a way that counts as too slow is sent nothing that could say so."""

BULK_NS = 10_000_000_000
"""Bandwidth is that of the large messages of so long. On a way that was slow once, and is not asked
to carry anything since, that of the first one after it would not count for long otherwise."""

BUSY_NS = 1_000_000_000
"""What is sent while there is always something on the way tells the bandwidth together, but no
more than so long of it: it may change."""

_AT_LEAST = 3
"""Or of the last three, where they are rare; so with round trips."""

_SLOWEST_NS = 3_000_000_000
"""A round trip that was not seen again for up to twice so long is no longer what may happen. Were
it longer, one stall would keep an outage from being noticed for long."""

BULK_BYTES = 65_536
"""From this size on a message tells the bandwidth, and below it the round trip ..."""

_BULK_ROUND_TRIPS = 2
"""... unless its bytes are expected to take so many of them: on a link that is slow, or was."""

_TRIAL_NS = 50_000_000
"""What is sent only to learn the bandwidth may hold up other messages for so long ..."""

_TRIAL_BYTES = 4_096
"""... but has so many bytes at least, as one message among others may, and enough to tell it."""

_LOWER = 0.25
"""The quantile of the time per byte that counts: what is above it has waited for something else."""

_MATERIAL = 0.2
"""The way is another one if its round trip or bandwidth moved by more than this share ..."""

_MATERIAL_NS = 1_000_000
"""... and a message of 100 KB takes so much longer or shorter."""

_TYPICAL_BYTES = 100_000


class Recent:
    """The last samples, in order of age and of size."""

    __slots__ = ("_aged", "_sorted")

    def __init__(self) -> None:
        """Has none."""
        self._aged: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self._aged)

    def add(self, sample: float) -> None:
        """Takes one in, for the oldest where there are enough."""
        if len(self._aged) == ROUND_TRIPS:
            self._sorted.remove(self._aged.popleft())
        self._aged.append(sample)
        insort(self._sorted, sample)

    def quantile(self, share: float) -> float:
        """That below which a share of them lies; 0 before the first."""
        return _quantile(self._sorted, share)


class _Window:
    """The samples of the last so many nanoseconds."""

    __slots__ = ("_aged", "_length_ns")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._aged: deque[tuple[int, float]] = deque(maxlen=ROUND_TRIPS)

    def add(self, sample: float, now_ns: int) -> None:
        aged = self._aged
        aged.append((now_ns, sample))
        while len(aged) > _AT_LEAST and aged[0][0] < now_ns - self._length_ns:
            aged.popleft()

    def quantile(self, share: float) -> float:
        return _quantile(sorted([sample for _, sample in self._aged]), share)


class _Slowest:
    """The largest sample of the last three to six seconds."""

    __slots__ = ("_before", "_now", "_since_ns")

    def __init__(self) -> None:
        self._before = self._now = 0
        self._since_ns = 0

    def add(self, sample_ns: int, now_ns: int) -> None:
        if now_ns - self._since_ns > _SLOWEST_NS:
            self._before, self._now, self._since_ns = self._now, 0, now_ns
        self._now = max(self._now, sample_ns)

    @property
    def value_ns(self) -> int:
        return max(self._before, self._now)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class WayMeter:
    """Measures one way.

    A small message tells the round trip. A large one whose far end says how long it was there
    tells the bandwidth: what is left of its time, apart from the round trip, is that of its bytes.

    Args:
        byte_ns: How long each byte takes, until that is measured; 0 leaves it to the scheduler's
            latency curve, which takes it for execution.
        clock_ns: A monotonic clock.

    Attributes:
        sent_bytes: All that went there.
        received_bytes: All that came back.
    """

    def __init__(
        self, byte_ns: float = 0.0, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Has seen nothing."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._clock_ns = clock_ns
        self._round_trips = Recent()
        self._now = _Window(NOW_NS)
        self._slowest = _Slowest()
        self._round_trip_ns = 0
        self._bulk = _Window(BULK_NS)
        self._busy_since_ns = self._left_ns = self._busy_bytes = 0
        self._byte_ns = byte_ns
        self._answered: deque[bool] = deque(maxlen=ROUND_TRIPS)
        self._told_ns = 0

    # -- learning

    def round_trip(self, took_ns: int) -> None:
        """A small message came back."""
        now_ns = self._clock_ns()
        self._round_trips.add(float(took_ns))
        self._slowest.add(took_ns, now_ns)
        self._now.add(float(took_ns), now_ns)
        self._round_trip_ns = int(self._now.quantile(0.5))
        self._answered.append(True)

    def lost(self) -> None:
        """A small message did not come back in time."""
        self._answered.append(False)

    def carried(
        self, sent: int, received: int, way_ns: int | None, sent_ns: int | None = None
    ) -> bool:
        """A message and its answer came through; whether that tells the round trip.

        Args:
            sent: Its bytes.
            received: Those of the answer.
            way_ns: Its time without that at the far end; None where the far end does not say.
            sent_ns: When it was sent, on the clock; None is that nothing else was on the way.
        """
        self.sent_bytes += sent
        self.received_bytes += received
        if way_ns is None:
            return False
        size = sent + received
        is_bulk = self.is_bulk(size)
        if not is_bulk:
            self.round_trip(max(0, way_ns - int(self.byte_ns * size)))
        elif self._round_trips:
            self._carried_much(size, max(0, way_ns - self.round_trip_ns), sent_ns)
        return not is_bulk

    def _carried_much(self, size: int, bytes_ns: int, sent_ns: int | None) -> None:
        """Takes in how long the bytes of a message took.

        What was sent meanwhile shares the way with it, one after the other or at once, so what
        counts is how many bytes were through since the way was last idle.
        """
        now_ns = self._clock_ns()
        if sent_ns is None:
            sent_ns = now_ns - bytes_ns
            self._left_ns = min(self._left_ns, sent_ns)
        left_ns = sent_ns + bytes_ns
        if sent_ns >= self._left_ns:
            self._busy_since_ns, self._busy_bytes = sent_ns, 0
        else:
            if self._left_ns - self._busy_since_ns > BUSY_NS:
                self._busy_since_ns, self._busy_bytes = self._left_ns, 0
            if left_ns <= self._busy_since_ns:
                return  # it was through before what is known of now
        self._left_ns = max(self._left_ns, left_ns)
        self._busy_bytes += size
        busy_ns = self._left_ns - self._busy_since_ns
        self._bulk.add(busy_ns / self._busy_bytes, now_ns)
        self._byte_ns = self._bulk.quantile(_LOWER)

    def is_bulk(self, size_bytes: int) -> bool:
        """Whether so many bytes tell the bandwidth rather than the round trip."""
        bytes_ns = self.byte_ns * size_bytes
        return size_bytes >= BULK_BYTES or bytes_ns > _BULK_ROUND_TRIPS * self.round_trip_ns > 0

    def trial_bytes(self, most: int) -> int:
        """How many bytes to send, of so many at most, to learn the bandwidth and hold up little."""
        if not self.byte_ns:
            return min(most, BULK_BYTES)
        telling_ns = (_BULK_ROUND_TRIPS + 1) * self.round_trip_ns
        telling = min(BULK_BYTES, telling_ns / self.byte_ns)
        return min(most, int(max(_TRIAL_BYTES, _TRIAL_NS / self.byte_ns, telling)))

    # -- what is known

    @property
    def round_trip_ns(self) -> int:
        """The median round trip of now; 0 before the first."""
        return self._round_trip_ns

    @property
    def slow_round_trip_ns(self) -> int:
        """The longest round trip lately; 0 before the first."""
        return self._slowest.value_ns

    @property
    def jitter_ns(self) -> int:
        """How much longer one round trip in twenty takes than the median."""
        return int(self._round_trips.quantile(0.95) - self._round_trips.quantile(0.5))

    @property
    def loss(self) -> float:
        """The share of the last small messages that never came back."""
        return 1 - sum(self._answered) / len(self._answered) if self._answered else 0.0

    @property
    def byte_ns(self) -> float:
        """How long each byte takes."""
        return self._byte_ns

    def transfer_ns(self) -> tuple[int, float]:
        """The way there, for a message and for each byte; as in `TargetSpec`."""
        return self.round_trip_ns // 2, self.byte_ns

    @property
    def back_ns(self) -> int:
        """The way back of a small answer."""
        return self.round_trip_ns - self.round_trip_ns // 2

    def both_ways_ns(self, size_bytes: int) -> int:
        """The way there of so many bytes, and back."""
        return self.round_trip_ns + int(self.byte_ns * size_bytes)

    def moved(self) -> bool:
        """Whether the way is another one than when this was last true."""
        typical_ns = self.both_ways_ns(_TYPICAL_BYTES)
        apart_ns = abs(typical_ns - self._told_ns)
        if apart_ns < _MATERIAL_NS or apart_ns < _MATERIAL * self._told_ns:
            return False
        self._told_ns = typical_ns
        return True

    def describe(self) -> dict[str, Any]:
        """All of it, for people and programs; bandwidth is None until it was measured."""
        byte_ns = self.byte_ns
        return {
            "round_trip_ms": milliseconds(self.round_trip_ns),
            "jitter_ms": milliseconds(self.jitter_ns),
            "loss": round(self.loss, 4),
            "bandwidth_mbps": round(8e3 / byte_ns, 3) if byte_ns else None,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }
