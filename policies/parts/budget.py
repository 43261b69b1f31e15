"""A limit on spending per hour, and a record of what was spent."""

from __future__ import annotations

from collections import deque
from math import fsum

HOUR_NS = 3_600_000_000_000

STEP_NS = 1_000_000_000
"""Spending within one step is kept as one sum, until all of it is an hour old."""


class HourlyBudget:
    """A limit on the costs of the last hour; it starts with nothing spent.

    Args:
        per_hour: The most that may be spent in any hour, in the unit of the targets' costs; None
            for no limit.

    Raises:
        ValueError: It is below 0 or not a number.
    """

    def __init__(self, per_hour: float | None) -> None:
        """Starts with nothing spent."""
        if per_hour is not None and not per_hour >= 0:
            raise ValueError(f"budget_per_hour must be 0 or more, not {per_hour}")
        self._per_hour = per_hour
        self.clear()

    def clear(self) -> None:
        """Forgets what was spent."""
        self._now_ns = 0
        self._spent: deque[tuple[int, float]] = deque()
        self._total = 0.0

    def look(self, now_ns: int) -> None:
        """Updates the time, and forgets spending more than an hour old."""
        self._now_ns = now_ns
        if self._spent and self._spent[0][0] <= now_ns:
            while self._spent and self._spent[0][0] <= now_ns:
                self._spent.popleft()
            self._total = fsum([cost for _, cost in self._spent])

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit; without one, costs need not be computed."""
        return self._per_hour is not None

    @property
    def left(self) -> float:
        """How much may be spent now."""
        return float("inf") if self._per_hour is None else self._per_hour - self._total

    def covers(self, cost: float) -> bool:
        """Whether a cost is within what is left; a cost of 0 always is."""
        return not cost or self._per_hour is None or self._total + cost <= self._per_hour

    def pays(self, cost: float) -> bool:
        """Spends a cost if it is within what is left; returns whether it did."""
        if not self.covers(cost):
            return False
        if self._per_hour is not None and cost:
            until_ns = (self._now_ns // STEP_NS + 1) * STEP_NS + HOUR_NS
            self._total += cost
            if self._spent and self._spent[-1][0] == until_ns:
                cost += self._spent.pop()[1]
            self._spent.append((until_ns, cost))
        return True
