"""What one direction of an emulated link does to the bytes on it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from replay.links.opening import open_links
from replay.links.trace import LinkTrace

SEGMENT_BYTES = 1448
"""TCP's payload in a packet of 1,500 bytes; each packet is lost or not on its own."""

MOST_READ_BYTES = 1 << 16
_GRAIN_NS = 1_000_000
_ATTEMPTS = 300
"""The most retransmissions of a piece: a minute at the usual timeout."""


@dataclass(frozen=True, slots=True)
class OneWay:
    """Constants and recordings of one direction.

    Attributes:
        delay_ms: The delay of everything, however small, in milliseconds.
        jitter_ms: Each piece takes `delay_ms` plus or minus up to this much, uniformly, but never
            less than 0, as with netem's `delay`. Bytes still arrive in the order sent.
        mbps: 10^6 bits per second, shared by all connections; None is no limit.
        loss: The probability of each packet to be lost, at least 0 and below 1.
        stall_ms: What a loss costs a connection: the retransmission timeout; 200 is Linux' least.
        trace: A recording, which repeats. Half of its round trip is added to `delay_ms`; while its
            probes are lost, everything is; its capacity is the rate.

    Raises:
        ValueError: A number is out of range, or there are two rates.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    mbps: float | None = None
    loss: float = 0.0
    stall_ms: float = 200.0
    trace: LinkTrace | None = None

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is a number of milliseconds from 0, not {value!r}")
        if not (math.isfinite(self.stall_ms) and self.stall_ms > 0):
            raise ValueError(f"stall_ms is above 0, not {self.stall_ms!r}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is a share from 0 to below 1, not {self.loss!r}")
        if self.mbps is not None and not (math.isfinite(self.mbps) and self.mbps > 0):
            raise ValueError(f"mbps is above 0, or None for no limit, not {self.mbps!r}")
        if self.mbps is not None and self.trace is not None and self.trace.capacity is not None:
            raise ValueError("the recording has a capacity, so mbps can't be given too")

    @classmethod
    def half(
        cls,
        rtt_ms: float = 0.0,
        jitter_ms: float = 0.0,
        *recordings: Path | str,
        format: str | None = None,
        interval_s: float | None = None,
        mbps: float | None = None,
        loss: float = 0.0,
        stall_ms: float = 200.0,
    ) -> OneWay:
        """Either direction of a link that is the same both ways.

        Args:
            rtt_ms: The round trip; half of it is this direction's delay.
            jitter_ms: The jitter of the round trip; half of it is this direction's.
            *recordings: Files that `open_links` reads: one of a delay, one of a capacity, or both.
            format: Their format, as in `open_links`.
            interval_s: Time between their samples, as in `open_links`.
            mbps: As in `OneWay`.
            loss: As in `OneWay`.
            stall_ms: As in `OneWay`.

        Raises:
            ValueError: As in `OneWay` and `open_links`.
        """
        trace = open_links(recordings, format, interval_s=interval_s) if recordings else None
        return cls(rtt_ms / 2, jitter_ms / 2, mbps, loss, stall_ms, trace)

    @property
    def bps(self) -> float:
        """The mean rate in bits per second; infinite without a limit."""
        if self.trace is not None and self.trace.capacity is not None:
            return self.trace.capacity.mean_bps
        return self.mbps * 1e6 if self.mbps is not None else math.inf

    @property
    def grain_bytes(self) -> int:
        """The bytes sent at a time, so that connections take turns about every millisecond."""
        rate_bytes = min(self.bps * _GRAIN_NS / 8e9, MOST_READ_BYTES)
        return max(SEGMENT_BYTES, int(rate_bytes))

    def delay_ns(self, at_ns: int) -> int:
        """The delay of a small message at a time of the recording, without jitter."""
        recorded_ns = self.trace.rtt_ns(at_ns) // 2 if self.trace is not None else 0
        return round(self.delay_ms * 1e6) + recorded_ns

    def transfer_ns(self, at_ns: int, size_bytes: int) -> int:
        """How long `size_bytes` occupy the link, from `at_ns` on."""
        if self.mbps is not None:
            return round(size_bytes * 8e3 / self.mbps)
        return self.trace.transfer_ns(at_ns, size_bytes) if self.trace is not None else 0

    def lost(self, at_ns: int, packets: int, chance: random.Random) -> bool:
        """Whether at least one of several packets, sent at `at_ns`, is lost."""
        if self.trace is not None and self.trace.lost(at_ns):
            return True
        return self.loss > 0 and chance.random() >= (1 - self.loss) ** packets


class Carrier:
    """One direction in use: computes when what is sent arrives. It has no clock of its own.

    Args:
        way: The link's properties; may be replaced at any time, for what is sent from then on.
        origin_ns: When the recording begins.

    Attributes:
        way: As given.
        free_ns: When everything sent so far has left the bottleneck.
        cut_ns: The time since which nothing gets through; None while the link works.
        stalls: Number of losses.
        passed_bytes: Number of bytes delivered.
    """

    def __init__(self, way: OneWay, origin_ns: int) -> None:
        """Begins idle."""
        self.way = way
        self.free_ns = origin_ns
        self.cut_ns: int | None = None
        self.stalls = 0
        self.passed_bytes = 0
        self._origin_ns = origin_ns

    def arrival_ns(self, now_ns: int, size_bytes: int, chance: random.Random) -> int:
        """Sends bytes behind all earlier ones, and returns when they arrive at the other end.

        Args:
            now_ns: When they are handed over.
            size_bytes: How many there are.
            chance: Random numbers for jitter and loss, separate for each connection, so that
                connections don't share their losses.
        """
        way = self.way
        begun_ns = max(self.free_ns, now_ns)
        sent_ns = begun_ns + way.transfer_ns(begun_ns - self._origin_ns, size_bytes)
        self.free_ns = sent_ns
        packets = -(-size_bytes // SEGMENT_BYTES)
        for _ in range(_ATTEMPTS):
            if not way.lost(sent_ns - self._origin_ns, packets, chance):
                break
            self.stalls += 1
            packets = 1  # the others have arrived
            sent_ns += round(way.stall_ms * 1e6)
        delay_ns = way.delay_ns(sent_ns - self._origin_ns)
        if way.jitter_ms:
            delay_ns += round(way.jitter_ms * 1e6 * chance.uniform(-1, 1))
        return sent_ns + max(0, delay_ns)

    def delay_ns(self, now_ns: int) -> int:
        """The delay of a small message, without jitter and queueing."""
        return self.way.delay_ns(now_ns - self._origin_ns)

    def cut(self, now_ns: int) -> None:
        """Lets nothing through from now on."""
        if self.cut_ns is None:
            self.cut_ns = now_ns

    def restore(self, now_ns: int) -> int:
        """Continues from where everything was; returns how many ns later it all is now."""
        if self.cut_ns is None:
            return 0
        shift_ns, self.cut_ns = now_ns - self.cut_ns, None
        self.free_ns += shift_ns
        return shift_ns
