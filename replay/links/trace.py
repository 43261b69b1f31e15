"""What a recorded link does at a given time: round trips, losses, transfers. Recordings repeat."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import lt

LOST = -1
"""The round trip of a probe that was lost."""


class Delay:
    """Round trips, sampled evenly in time. Each holds until the next.

    While probes are lost, the round trip is that of the last one that came back.

    Args:
        rtts_ns: A round trip per sample, or `LOST`; at least one is not lost.
        interval_ns: Time from one sample to the next.

    Attributes:
        interval_ns: As given.
        loss: The share of probes that were lost.
    """

    def __init__(self, rtts_ns: Iterable[int], interval_ns: int) -> None:
        """Fills the gaps of lost probes."""
        samples = array("q", rtts_ns)
        self._arrived = array("q", sorted(rtt_ns for rtt_ns in samples if rtt_ns != LOST))
        if not self._arrived or interval_ns <= 0:
            raise ValueError("a delay needs a probe that came back, and time between its probes")
        self._lost = bytes(rtt_ns == LOST for rtt_ns in samples)
        self._held = array("q", _filled(samples))
        self.interval_ns = interval_ns
        self.loss = 1 - len(self._arrived) / len(samples)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def period_ns(self) -> int:
        """The time after which it repeats."""
        return self.interval_ns * len(self._held)

    def rtt_ns(self, at_ns: int) -> int:
        """The round trip of a small message."""
        return self._held[at_ns // self.interval_ns % len(self._held)]

    def lost(self, at_ns: int) -> bool:
        """Whether what is sent at a time is lost."""
        return bool(self._lost[at_ns // self.interval_ns % len(self._lost)])

    def heard_ns(self, at_ns: int) -> int:
        """The first moment from `at_ns` on at which a message gets through."""
        place, samples = at_ns // self.interval_ns, len(self._lost)
        index = place % samples
        if not self._lost[index]:
            return at_ns
        heard = self._lost.find(0, index)
        if heard < 0:
            heard = samples + self._lost.index(0)
        return (place + heard - index) * self.interval_ns

    def quantile_ns(self, quantile: float) -> int:
        """A quantile of the round trips that came back, linearly interpolated."""
        place = quantile * (len(self._arrived) - 1)
        below, above = self._arrived[math.floor(place)], self._arrived[math.ceil(place)]
        return round(below + (above - below) * (place % 1))


def _filled(samples: Sequence[int]) -> Iterator[int]:
    held = next(rtt_ns for rtt_ns in samples if rtt_ns != LOST)
    for rtt_ns in samples:
        held = held if rtt_ns == LOST else rtt_ns
        yield held


class Capacity:
    """How many bytes a link carries, at a steady rate in each of its pieces.

    Args:
        starts_ns: When each piece starts, rising from 0; it lasts until the next one does.
        sizes: The bytes that each piece carries.
        period_ns: The end of the last piece, from which it repeats.

    Attributes:
        period_ns: As given.
        period_bytes: The bytes that it carries in that time.
    """

    def __init__(self, starts_ns: Iterable[int], sizes: Iterable[int], period_ns: int) -> None:
        """Adds up the bytes."""
        self._knots_ns = array("q", chain(starts_ns, [period_ns]))
        self._sums = array("q", accumulate(sizes, initial=0))
        self.period_ns = period_ns
        self.period_bytes = self._sums[-1]
        if len(self._sums) != len(self._knots_ns):
            raise ValueError("a capacity needs as many sizes as pieces")
        rising = all(map(lt, self._knots_ns, islice(self._knots_ns, 1, None)))
        if self._knots_ns[0] != 0 or not rising or self.period_bytes <= 0:
            raise ValueError("a capacity needs pieces from 0 on that carry something together")

    @property
    def mean_bps(self) -> float:
        """Bits per second over the whole recording."""
        return self.period_bytes * 8e9 / self.period_ns

    @property
    def burst_bytes(self) -> float:
        """The most that it carries in any span beyond what it would at its mean rate."""
        knots = zip(self._sums, self._knots_ns, strict=True)
        ahead = [size - at_ns * self.period_bytes / self.period_ns for size, at_ns in knots]
        return max(ahead) - min(ahead)

    def transfer_ns(self, at_ns: int, size_bytes: int) -> int:
        """How long the otherwise idle link needs for `size_bytes` from `at_ns` on.

        Exact in integers, rounded up to a nanosecond.
        """
        if size_bytes <= 0:
            return 0
        since_ns = at_ns % self.period_ns
        piece = bisect_right(self._knots_ns, since_ns) - 1
        # What has been carried since the period began, times the length of the piece.
        width_ns = self._knots_ns[piece + 1] - self._knots_ns[piece]
        rate = self._sums[piece + 1] - self._sums[piece]
        carried = self._sums[piece] * width_ns + rate * (since_ns - self._knots_ns[piece])
        periods, rest = divmod(carried + size_bytes * width_ns, self.period_bytes * width_ns)
        if not rest:
            # The last byte is through at the end of the period's last piece that carries any.
            periods, rest = periods - 1, self.period_bytes * width_ns
        return periods * self.period_ns + self._when(rest, width_ns) - since_ns

    def _when(self, carried: int, unit: int) -> int:
        """When in a period `carried / unit` bytes, a number above 0, are through."""
        last = bisect_left(self._sums, -(-carried // unit)) - 1
        start_ns, end_ns = self._knots_ns[last], self._knots_ns[last + 1]
        rate = (self._sums[last + 1] - self._sums[last]) * unit
        missing = carried - self._sums[last] * unit
        return start_ns - (-missing * (end_ns - start_ns) // rate)


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """A recorded link. The recording repeats without end.

    Attributes:
        delay: Its round trips; None if only the capacity was recorded.
        capacity: Its capacity; None if only round trips were recorded.
    """

    delay: Delay | None = None
    capacity: Capacity | None = None

    @property
    def loss(self) -> float:
        """The share of what is sent that is lost; 0 if it wasn't recorded."""
        return self.delay.loss if self.delay else 0.0

    def rtt_ns(self, at_ns: int) -> int:
        """The round trip of a small message; 0 if it wasn't recorded."""
        return self.delay.rtt_ns(at_ns) if self.delay else 0

    def lost(self, at_ns: int) -> bool:
        """Whether what is sent at a time is lost; never if it wasn't recorded."""
        return self.delay is not None and self.delay.lost(at_ns)

    def transfer_ns(self, at_ns: int, size_bytes: int) -> int:
        """How long `size_bytes` occupy the link from `at_ns` on; 0 if it wasn't recorded."""
        return self.capacity.transfer_ns(at_ns, size_bytes) if self.capacity else 0


def join(*links: LinkTrace) -> LinkTrace:
    """Combines the delay of one recording and the capacity of another into one link.

    Raises:
        ValueError: Two recordings have a delay, or two have a capacity.
    """
    delays = [link.delay for link in links if link.delay]
    capacities = [link.capacity for link in links if link.capacity]
    if len(delays) > 1 or len(capacities) > 1:
        raise ValueError("a link takes one recording of its delay and one of its capacity")
    return LinkTrace(delays[0] if delays else None, capacities[0] if capacities else None)
