"""A margin that makes the observed quantile match the promised one.

Adaptive conformal inference (I. Gibbs and E. Candès, NeurIPS 2021): every outcome adjusts the share
of misses that a prediction aims at, far down after a miss and slightly up after a hit. In the long
run the observed share of misses equals the promised one, whatever the noise. A sample's rank among
n others exchangeable with it is uniform, so the prediction is the ceil((n + 1) (1 - aim))-th of
them in order (V. Vovk et al., 2005).
"""

from __future__ import annotations

GAMMA = 0.005
"""How far one outcome moves the aim. A larger value follows faster and fluctuates more."""

_SLACK = 3.0
"""The odds of a miss that are aimed at stay below this many times the promised odds, so that a few
misses bring the aim back however long nothing was missed."""

_ROUNDING = 1e-9
"""A product this close above a whole number counts as that number."""


def adapted(aim: float, misses: float, missed: bool) -> float:
    """The share of misses to aim at next.

    Args:
        aim: The share aimed at so far.
        misses: The promised share, between 0 and 1.
        missed: Whether the prediction was too low this time.

    Returns:
        At least 0, at which the prediction is the largest sample, and at most 1.
    """
    aim += GAMMA * (misses - missed)
    if aim <= 0:
        return 0.0
    highest = _SLACK * misses / (1 + (_SLACK - 1) * misses)
    return aim if aim < highest else highest


def rank(count: int, aim: float) -> int:
    """The index, among `count` samples in ascending order, that only a share `aim` exceeds."""
    return min(count - 1, int((count + 1) * (1 - aim) - _ROUNDING))
