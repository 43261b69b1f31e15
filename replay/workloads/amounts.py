"""Numbers that a workload description gives as one value or as a distribution."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


class Amount(Protocol):
    """A number to draw."""

    def draw(self, chance: random.Random) -> float:
        """Draws a value."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same value.

    Attributes:
        value: The value.
    """

    value: float

    def draw(self, chance: random.Random) -> float:
        """The value; draws no random number."""
        del chance
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform distribution over a range.

    Attributes:
        low: The lowest value.
        high: The highest value.
    """

    low: float
    high: float

    def draw(self, chance: random.Random) -> float:
        """A number within the range."""
        return self.low + (self.high - self.low) * chance.random()


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several numbers, each equally likely.

    Attributes:
        values: The numbers, at least one.
    """

    values: tuple[float, ...]

    def draw(self, chance: random.Random) -> float:
        """One of the numbers."""
        return self.values[int(chance.random() * len(self.values))]
