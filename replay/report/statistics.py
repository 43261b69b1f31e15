"""Means over seeds, with their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of independent values.

    Attributes:
        mean: Their arithmetic mean.
        half_width: Half of its 95 % confidence interval; `None` for fewer than two values.
        count: Number of values.
    """

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """The mean of the values that aren't None, with Student's t interval; `None` without any."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    count = len(known)
    mean = math.fsum(known) / count
    if count == 1:
        return Estimate(mean, None, 1)
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # slow to import

    variance = math.fsum((value - mean) ** 2 for value in known) / (count - 1)
    student_t = float(stdtrit(count - 1, 0.975))
    return Estimate(mean, student_t * math.sqrt(variance / count), count)
