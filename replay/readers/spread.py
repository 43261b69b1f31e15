"""Places arrivals where a trace only tells how many there were in an interval."""

from __future__ import annotations

import random
from collections.abc import Iterator


def spread_evenly(count: int, start_ns: int, width_ns: int, chance: random.Random) -> Iterator[int]:
    """Rising times, uniform over the interval: a Poisson process that has `count` arrivals.

    The least of n uniform numbers is distributed as 1 - u^(1/n), so the times can be generated in
    order without holding them.
    """
    at = 0.0
    for left in range(count, 0, -1):
        at += (1.0 - at) * (1.0 - chance.random() ** (1.0 / left))
        yield start_ns + min(width_ns - 1, int(at * width_ns))
