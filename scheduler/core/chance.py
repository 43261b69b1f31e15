"""Chance that is the same each time: the same events bring the same commands, on any machine."""

from __future__ import annotations

_FACTOR, _STEP, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class Chance:
    """A linear congruential generator (D. E. Knuth, MMIX).

    Args:
        seed: From which all that it gives follows.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        """Has drawn nothing yet."""
        self._state = seed

    def below(self, count: int) -> int:
        """An integer from 0, below a count."""
        self._state = (self._state * _FACTOR + _STEP) & _MASK
        return (self._state >> 33) % count
