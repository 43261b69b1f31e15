"""A margin that makes the promised quantile the observed one.

Adaptive conformal inference (I. Gibbs and E. Candès, NeurIPS 2021): the share of misses that a
prediction aims at is itself moved by every outcome, a long way down after a miss and a little up
after a hit, so that in the long run as many are missed as were promised to be, whatever the
noise. A sample's rank among n others that it could have changed places with is uniform, so the
prediction is the ceil((n + 1) (1 - aim))-th of them in order (V. Vovk et al., 2005).
"""

from __future__ import annotations

GAMMA = 0.005
"""How far one outcome moves the aim. Larger follows faster and trembles more."""

_SLACK = 3.0
"""The odds of a miss that are aimed at stay below so many times the promised odds: however kind
the past was, a few misses bring the aim back."""

_ROUNDING = 1e-9
"""A product that is a whole number but for its last bits is one."""


def adapted(aim: float, misses: float, missed: bool) -> float:
    """The share of misses to aim at next.

    Args:
        aim: What was aimed at.
        misses: The promised share, between 0 and 1.
        missed: Whether the prediction was too low this time.

    Returns:
        At least 0, where the largest sample is the prediction, and at most 1.
    """
    aim += GAMMA * (misses - missed)
    if aim <= 0:
        return 0.0
    highest = _SLACK * misses / (1 + (_SLACK - 1) * misses)
    return aim if aim < highest else highest


def rank(count: int, aim: float) -> int:
    """Which of `count` samples in ascending order, from 0, only a share `aim` is beyond."""
    return min(count - 1, int((count + 1) * (1 - aim) - _ROUNDING))
