"""What the cache counts, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Hits:
    """Requests that were answered without running, by what answered."""

    memory: int = 0
    """The scheduler's own memory."""
    redis: int = 0
    """The shared Redis."""
    near: int = 0
    """The answer to a frame that was nearly the same."""
    running: int = 0
    """The same request, which was under way already, here or on another box."""


@dataclass(slots=True)
class Skipped:
    """Requests for which a part of the cache was not asked, by why."""

    model: int = 0
    """The model's answers are never kept."""
    size: int = 0
    """The input is too large to look up."""
    budget: int = 0
    """Redis would have taken too much of the budget."""
    away: int = 0
    """Redis was away or had too much to do."""


@dataclass(slots=True)
class Counts:
    """Everything that is counted."""

    hits: Hits = field(default_factory=Hits)
    skipped: Skipped = field(default_factory=Skipped)
    misses: int = 0
    """Requests that were looked up, and had to run."""
    invalid: int = 0
    """Values in Redis that were no answers."""
    stored: int = 0
    """Answers that were kept."""
    invalidated: int = 0
    """Answers that others changed or removed in Redis."""
    gave_up: int = 0
    """Looks at Redis that took too long for the request."""

    def describe(self) -> Mapping[str, object]:
        """As plain values."""
        return asdict(self)
