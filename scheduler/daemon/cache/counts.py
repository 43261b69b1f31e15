"""The cache's counters, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Hits:
    """Requests that were answered without running, by source of the answer."""

    memory: int = 0
    """The scheduler's own memory."""
    redis: int = 0
    """The shared Redis."""
    near: int = 0
    """The answer to a nearly identical frame."""
    running: int = 0
    """The same request, already in flight here or on another box."""


@dataclass(slots=True)
class Skipped:
    """Requests for which a part of the cache was skipped, by reason."""

    model: int = 0
    """The model's answers are never kept."""
    size: int = 0
    """The input is too large to look up."""
    budget: int = 0
    """Redis would have taken too much of the budget."""
    away: int = 0
    """Redis was unavailable or too busy."""


@dataclass(slots=True)
class Counts:
    """All counters."""

    hits: Hits = field(default_factory=Hits)
    skipped: Skipped = field(default_factory=Skipped)
    misses: int = 0
    """Requests that were looked up and had to run."""
    invalid: int = 0
    """Values in Redis that were not valid answers."""
    stored: int = 0
    """Answers that were kept."""
    invalidated: int = 0
    """Answers that others changed or removed in Redis."""
    gave_up: int = 0
    """Waits for Redis that took too long for the request."""

    def describe(self) -> Mapping[str, object]:
        """The counters as plain values."""
        return asdict(self)
