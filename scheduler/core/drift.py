"""Whether latency has shifted away from the level in the window.

The test of E. S. Page (1954) and D. V. Hinkley (1971): a sum of deviations, clipped at 0, exceeds a
threshold soon after the mean has shifted, and hardly ever before. The deviation is that of a
sample's rank in the window, not of the sample itself. Ranks are uniform under any noise, so one
threshold serves both a steady device and one with heavy tails, and all batch sizes share one sum.

The test takes samples to be independent. Batches that are at a target at once are not: a moment in
which their link stalls makes all of them slow. So together they count as one sample.
"""

from __future__ import annotations

from collections.abc import Sequence

SLACK = 0.25
"""Deviations below this are not drift; the sliding window adapts to them by itself."""

THRESHOLD = 5.0
"""A sum above this is drift. A device that becomes twice as slow reaches it in 7 to 12 batches."""


def deviation(below: int, equal: int, count: int) -> float:
    """Where a sample ranks among others: -1 below all of many, 0 in the middle, 1 above all.

    Args:
        below: How many of the others are smaller.
        equal: How many are equal.
        count: How many there are.
    """
    return (2 * below + equal + 1) / (count + 1) - 1


def sums(slower: float, faster: float, deviation: float, together: int) -> tuple[float, float]:
    """The test's two sums, one per direction, after one more deviation.

    Args:
        slower: The sum for a higher level.
        faster: The sum for a lower level.
        deviation: That of a batch.
        together: How many batches were at the target at once, this one among them.
    """
    slower += (deviation - SLACK) / together
    faster -= (deviation + SLACK) / together
    return slower if slower > 0 else 0.0, faster if faster > 0 else 0.0


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
