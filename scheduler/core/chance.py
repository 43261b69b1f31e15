"""Reproducible pseudo-randomness: the same events give the same commands, on any machine."""

from __future__ import annotations

_FACTOR, _STEP, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class Chance:
    """A linear congruential generator (D. E. Knuth, MMIX).

    Args:
        seed: Determines the whole sequence.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        """Starts at the seed."""
        self._state = seed

    def below(self, count: int) -> int:
        """The next integer from 0 to `count` - 1."""
        self._state = (self._state * _FACTOR + _STEP) & _MASK
        return (self._state >> 33) % count
