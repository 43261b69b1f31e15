"""How much longer one call takes than another, on a machine with other work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median

Call = Callable[[], object]
ClockNs = Callable[[], int]

WARM_UP = 10
LEAST_BLOCKS = 20
MOST_BLOCKS = 2_000
CAP_S = 40.0
"""How long one comparison may take, in seconds; a result still unknown then is reported so."""

_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Difference:
    """How two calls compare; times in nanoseconds, on the clock of the comparison.

    Attributes:
        first_ns: The median time of the first call.
        added_ns: The median, over the blocks, of how much longer the second took.
        low_ns: The lower end of that median's 95 % confidence interval.
        high_ns: Its upper end.
        blocks: The number of blocks.
    """

    first_ns: float
    added_ns: float
    low_ns: float
    high_ns: float
    blocks: int


def compare(
    first: Call,
    second: Call,
    aim_ns: Callable[[float], float],
    clock_ns: ClockNs = time.perf_counter_ns,
) -> Difference:
    """Run two calls in blocks of first, second, second, first until their difference is known.

    Each block gives one difference, so that a drift of the machine within it affects both calls
    equally, and each call runs as often on the caches that the other has left. Blocks continue
    until the confidence interval of the median difference is narrower than the aim and does not
    contain it, or until `CAP_S` is over.

    Args:
        first: The baseline.
        second: The call to measure.
        aim_ns: Given the median of the first, returns how much the second may add.
        clock_ns: The clock that times both.
    """
    for _ in range(WARM_UP):
        first()
        second()
    ones: list[int] = []
    differences: list[float] = []
    began = time.perf_counter()
    while len(differences) < MOST_BLOCKS:
        block = [_time(call, clock_ns) for call in (first, second, second, first)]
        ones += block[0::3]
        differences.append((block[1] + block[2] - block[0] - block[3]) / 2)
        if len(differences) >= LEAST_BLOCKS:
            low, high = median_interval(differences)
            aim = aim_ns(median(ones))
            known = high - low <= aim and not low <= aim < high
            if known or time.perf_counter() - began > CAP_S:
                break
    low, high = median_interval(differences)
    return Difference(median(ones), median(differences), low, high, len(differences))


def median_interval(samples: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of a median, whatever the distribution.

    Its ends are order statistics, chosen by the normal approximation of the binomial distribution
    of the number of samples below the median (Conover, Practical Nonparametric Statistics, 3.2).
    """
    ordered, count = sorted(samples), len(samples)
    reach = _Z95 * sqrt(count) / 2
    low = max(0, floor(count / 2 - reach) - 1)
    high = min(count - 1, ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def _time(call: Call, clock_ns: ClockNs) -> int:
    began_ns = clock_ns()
    call()
    return clock_ns() - began_ns
