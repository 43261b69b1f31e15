"""Measures a way from live traffic and probes: round trip, jitter, loss and bandwidth."""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any

from scheduler.daemon.figures import milliseconds

ROUND_TRIPS = 32
"""Number of round trips remembered: half a minute of probes, or the latest traffic."""

NOW_NS = 1_000_000_000
"""The current round trip is taken from the last second. Were it taken from a fixed number of
samples, however old, a way that was slow under load would count as slow for as many probes, or half
a minute; and a way that counts as too slow is sent nothing that could correct this."""

BULK_NS = 10_000_000_000
"""Bandwidth is taken from the large messages of this window. Without it, after a slow spell with no
traffic since, the first new sample would long be outweighed by old ones."""

BUSY_NS = 1_000_000_000
"""Messages sent while the way is continuously busy are measured together, but over no more than
this time: the bandwidth may change."""

_AT_LEAST = 3
"""Both windows keep at least this many samples, however old."""

_EXTREMES_NS = 3_000_000_000
"""The longest and the shortest round trip are forgotten after one to two such windows. With longer
windows, a single stall would keep an outage from being noticed for long."""

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

_MATERIAL = 0.2
"""The way counts as changed if a message of 100 KB takes longer or shorter by this share ..."""

_MATERIAL_NS = 1_000_000
"""... and by this time."""

_TYPICAL_BYTES = 100_000


class Recent:
    """The latest samples, ordered both by age and by size."""

    __slots__ = ("_aged", "_sorted")

    def __init__(self) -> None:
        """Has no samples."""
        self._aged: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._aged)

    def add(self, sample: float) -> None:
        """Adds a sample; the oldest makes room once there are `ROUND_TRIPS`."""
        if len(self._aged) == ROUND_TRIPS:
            self._sorted.remove(self._aged.popleft())
        self._aged.append(sample)
        insort(self._sorted, sample)

    def quantile(self, share: float) -> float:
        """The sample below which a share of them lies; 0 before the first."""
        return _quantile(self._sorted, share)


class _Window:
    """The samples of a sliding window, and at least the last `_AT_LEAST`."""

    __slots__ = ("_aged", "_length_ns")

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._aged: deque[tuple[int, float]] = deque(maxlen=ROUND_TRIPS)

    def __len__(self) -> int:
        return len(self._aged)

    def is_fresh(self, now_ns: int) -> bool:
        return bool(self._aged) and self._aged[-1][0] >= now_ns - self._length_ns

    def add(self, sample: float, now_ns: int) -> None:
        aged = self._aged
        aged.append((now_ns, sample))
        while len(aged) > _AT_LEAST and aged[0][0] < now_ns - self._length_ns:
            aged.popleft()

    def quantile(self, share: float) -> float:
        return _quantile(sorted([sample for _, sample in self._aged]), share)


class _Extreme:
    """The largest or the smallest sample of the last three to six seconds."""

    __slots__ = ("_choose", "_samples_ns", "_since_ns")

    def __init__(self, choose: Callable[..., int]) -> None:
        self._choose = choose
        self._samples_ns: deque[int] = deque(maxlen=2)
        self._since_ns = 0

    def add(self, sample_ns: int, now_ns: int) -> None:
        samples_ns = self._samples_ns
        if not samples_ns or now_ns - self._since_ns > _EXTREMES_NS:
            samples_ns.append(sample_ns)
            self._since_ns = now_ns
        samples_ns[-1] = self._choose(samples_ns[-1], sample_ns)

    @property
    def value_ns(self) -> int:
        """The sample; 0 before the first."""
        return self._choose(self._samples_ns) if self._samples_ns else 0


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


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
        sent_bytes: Total bytes sent.
        received_bytes: Total bytes received.
    """

    def __init__(
        self, byte_ns: float = 0.0, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Nothing is measured yet."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._clock_ns = clock_ns
        self._round_trips, self._ways = Recent(), Recent()
        self._now = _Window(NOW_NS)
        self._slowest, self._quickest = _Extreme(max), _Extreme(min)
        self._round_trip_ns = 0
        self._bulk = _Window(BULK_NS)
        self._middling = _Window(BULK_NS)
        self._busy_since_ns = self._left_ns = 0
        self._busy_is_cut = False
        self._busy_sent = self._busy_received = self._busy_alone = 0
        self._answered_before = False
        self._byte_ns = byte_ns
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
        self._round_trip_ns = int(self._now.quantile(0.5))
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
        self, window: _Window, sent: int, received: int, bytes_ns: int, sent_ns: int | None
    ) -> None:
        """Records how long the bytes of a message took.

        Messages in flight together share the way, one after the other or at once, so the bandwidth
        is the number of bytes that got through since the way was last idle. Messages travel while
        answers to earlier ones do, so only the direction with more bytes counts, and what of one
        message had no company in the other direction: at first nothing has been answered, and in
        the end only an answer is under way. By itself a message does not seem faster than it was,
        and slower only if it waited for others, so the lower of both figures counts: the way may be
        busy all the time, and yet idle in each direction now and then.
        """
        now_ns = self._clock_ns()
        if sent_ns is None:
            sent_ns = now_ns - bytes_ns
            self._left_ns = min(self._left_ns, sent_ns)
        left_ns = sent_ns + bytes_ns
        if sent_ns >= self._left_ns:
            self._busy_since_ns, self._busy_sent, self._busy_received = sent_ns, 0, 0
            self._busy_alone = min(sent, received)
            self._busy_is_cut = False
        else:
            if self._left_ns - self._busy_since_ns > BUSY_NS:
                self._busy_is_cut, self._answered_before = True, self._busy_received > 0
                self._busy_since_ns, self._busy_sent, self._busy_received = self._left_ns, 0, 0
                self._busy_alone = 0
            if left_ns <= self._busy_since_ns:
                return  # it got through before the current busy period
            if sent_ns < self._busy_since_ns and not self._busy_is_cut:
                self._busy_since_ns = sent_ns  # others have overtaken it on another connection
            told_late = self._answered_before or self._busy_received > 0
            if sent_ns < self._busy_since_ns and not received and told_late:
                return  # maybe it did too, but that was told behind answers to others
            if not self._busy_sent and not self._busy_received:
                self._busy_sent = -min(sent, received)  # it went before this period
        self._left_ns = max(self._left_ns, left_ns)
        self._busy_sent += sent
        self._busy_received += received
        busy_ns = self._left_ns - self._busy_since_ns
        alone = min(self._busy_alone, received)
        busy_bytes = max(self._busy_sent, self._busy_received) + alone
        window.add(min(busy_ns / busy_bytes, bytes_ns / (sent + received)), now_ns)
        stands_in = len(window) >= _AT_LEAST and not self._bulk.is_fresh(now_ns)
        if window is self._bulk or stands_in:
            self._byte_ns = window.quantile(_LOWER)

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
    def round_trip_ns(self) -> int:
        """The current median round trip; 0 before the first."""
        return self._round_trip_ns

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

    @property
    def byte_ns(self) -> float:
        """The transfer time per byte."""
        return self._byte_ns

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
