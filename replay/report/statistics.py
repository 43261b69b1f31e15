"""Means over seeds with their confidence intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of independent values.

    Attributes:
        mean: Their arithmetic mean.
        half_width: Half of its 95 % confidence interval; `None` for fewer than two values.
        count: How many there were.
    """

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """Where the interval begins."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Where the interval ends."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """The mean of the values that there are, with Student's t interval; `None` without any."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    count = len(known)
    mean = math.fsum(known) / count
    if count == 1:
        return Estimate(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in known) / (count - 1)
    return Estimate(mean, student_t(count - 1) * math.sqrt(variance / count), count)


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    Up to ten degrees of freedom from the table, from there by the expansion of Cornish and
    Fisher, whose error is then below 0.0005.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, float(freedom)
    first = (z**3 + z) / (4 * n)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + first + second + third
