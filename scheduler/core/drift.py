"""Whether latency has moved to another level than the remembered one.

The test of E. S. Page (1954) and D. V. Hinkley (1971): a sum of deviations that is never below 0
grows beyond a threshold soon after the mean has moved, and hardly ever before. The deviation is
that of a sample's rank in the window, not of the sample: ranks are uniform under any noise, so
one threshold serves a steady device and one with heavy tails, and all batch sizes add to one sum.
"""

from __future__ import annotations

from collections.abc import Sequence

SLACK = 0.25
"""Deviations below this are not drift: the window follows them by itself."""

THRESHOLD = 5.0
"""Beyond this sum it is drift. A device that is twice as slow reaches it in 7 to 12 batches."""


def deviation(below: int, equal: int, count: int) -> float:
    """Where a sample lies among others: -1 below all of many, 0 in their middle, 1 above all.

    Args:
        below: How many are smaller.
        equal: How many are the same.
        count: How many there are.
    """
    return (2 * below + equal + 1) / (count + 1) - 1


def sums(slower: float, faster: float, deviation: float) -> tuple[float, float]:
    """The test's sums, one for each direction, after one more deviation."""
    slower += deviation - SLACK
    faster -= deviation + SLACK
    return slower if slower > 0 else 0.0, faster if faster > 0 else 0.0


def median(values: Sequence[float]) -> float:
    """The middle of some values, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
