"""Numbers that a description gives as one value or as a distribution."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


class Amount(Protocol):
    """A number to be drawn."""

    def draw(self, chance: random.Random) -> float:
        """One of its values."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same.

    Attributes:
        value: What it is.
    """

    value: float

    def draw(self, chance: random.Random) -> float:
        """The value; takes no chance."""
        del chance
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any number of a range, each as likely.

    Attributes:
        low: The least.
        high: The most.
    """

    low: float
    high: float

    def draw(self, chance: random.Random) -> float:
        """A number of the range."""
        return self.low + (self.high - self.low) * chance.random()


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some numbers, each as likely.

    Attributes:
        values: At least one.
    """

    values: tuple[float, ...]

    def draw(self, chance: random.Random) -> float:
        """One of them."""
        return self.values[int(chance.random() * len(self.values))]
