"""The latest samples of a measured way, by age and by size."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

ROUND_TRIPS = 32
"""Number of samples remembered: half a minute of probes, or the latest traffic."""

AT_LEAST = 3
"""A window keeps at least this many samples, however old."""

EXTREMES_NS = 3_000_000_000
"""The longest and the shortest sample are forgotten after one to two such windows. With longer
windows, a single stall would keep an outage from being noticed for long."""


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


class Window:
    """The samples of a sliding window, and at least the last `AT_LEAST`.

    Args:
        length_ns: The length of the window.
    """

    __slots__ = ("_aged", "_length_ns")

    def __init__(self, length_ns: int) -> None:
        """Has no samples."""
        self._length_ns = length_ns
        self._aged: deque[tuple[int, float]] = deque(maxlen=ROUND_TRIPS)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._aged)

    def is_fresh(self, now_ns: int) -> bool:
        """Whether there is a sample within the window."""
        return bool(self._aged) and self._aged[-1][0] >= now_ns - self._length_ns

    def add(self, sample: float, now_ns: int) -> None:
        """Adds a sample, and forgets those that have left the window."""
        aged = self._aged
        aged.append((now_ns, sample))
        while len(aged) > AT_LEAST and aged[0][0] < now_ns - self._length_ns:
            aged.popleft()

    def forget_lower(self, level: float) -> None:
        """Forgets all but the last `AT_LEAST` samples if those are all above a level."""
        last = list(self._aged)[-AT_LEAST:]
        if len(last) == AT_LEAST and min([sample for _, sample in last]) > level:
            self._aged.clear()
            self._aged.extend(last)

    def quantile(self, share: float) -> float:
        """The sample below which a share of them lies; 0 before the first."""
        return _quantile(sorted([sample for _, sample in self._aged]), share)


class Extreme:
    """The largest or the smallest sample of the last three to six seconds.

    Args:
        choose: `max` or `min`.
    """

    __slots__ = ("_choose", "_samples_ns", "_since_ns")

    def __init__(self, choose: Callable[..., int]) -> None:
        """Has no samples."""
        self._choose = choose
        self._samples_ns: deque[int] = deque(maxlen=2)
        self._since_ns = 0

    def add(self, sample_ns: int, now_ns: int) -> None:
        """Adds a sample."""
        samples_ns = self._samples_ns
        if not samples_ns or now_ns - self._since_ns > EXTREMES_NS:
            samples_ns.append(sample_ns)
            self._since_ns = now_ns
        samples_ns[-1] = self._choose(samples_ns[-1], sample_ns)

    @property
    def value_ns(self) -> int:
        """The sample; 0 before the first."""
        return self._choose(self._samples_ns) if self._samples_ns else 0


def _quantile(ordered: list[float], share: float) -> float:
    """That of sorted samples, for a share below 1."""
    return ordered[int(share * len(ordered))] if ordered else 0.0
