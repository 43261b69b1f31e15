"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Backoff:
    """Times to wait between attempts: exponential, with full jitter.

    Each wait is drawn evenly from 0 to twice the ceiling of the one before, so that many who lost
    one server don't come back to it at the same moment; but it is at least a tenth of
    its own ceiling, so that a wait is one.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Attributes:
        first_ns: The first ceiling.
        most_ns: The highest.
        rng: Where chance comes from; seed it to have the same waits again.
    """

    first_ns: int
    most_ns: int
    rng: Random = field(default_factory=Random)
    _failures: int = 0

    def next_ns(self) -> int:
        """How long to wait after one more failure."""
        ceiling_ns = min(self.most_ns, self.first_ns << min(self._failures, 40))
        self._failures += 1
        return max(ceiling_ns // 10, self.rng.randrange(ceiling_ns) + 1)

    def reset(self) -> None:
        """It worked: the next failure is a first one."""
        self._failures = 0
