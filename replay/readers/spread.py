"""Placing arrivals of which a trace tells only how many came in an interval."""

from __future__ import annotations

import random
from collections.abc import Iterator


def spread_evenly(count: int, start_ns: int, width_ns: int, chance: random.Random) -> Iterator[int]:
    """Times in rising order, each as likely anywhere in the interval: a Poisson process of `count`.

    The least of n uniform numbers is distributed as 1 - u^(1/n), so they come out in order without
    being held.
    """
    at = 0.0
    for left in range(count, 0, -1):
        at += (1.0 - at) * (1.0 - chance.random() ** (1.0 / left))
        yield start_ns + min(width_ns - 1, int(at * width_ns))
