"""How long to wait before retrying what failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Backoff:
    """Waits between attempts: exponential backoff with full jitter.

    Each wait is drawn uniformly from 0 to a ceiling that doubles with each failure, so that many
    clients that lost one server don't return at the same moment. A wait is at least a tenth of its
    ceiling, so that it is never negligible.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Attributes:
        first_ns: The first ceiling.
        most_ns: The highest ceiling.
        rng: The source of randomness; seed it for reproducible waits.
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
        """Records a success: the next failure counts as the first."""
        self._failures = 0
