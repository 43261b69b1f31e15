"""When to stop asking a target that fails, and when to try it again."""

from __future__ import annotations

import enum
from typing import Any

from scheduler.backoff import Backoff


class BreakerState(str, enum.Enum):
    """What a breaker lets through."""

    CLOSED = "closed"
    """Everything."""

    OPEN = "open"
    """Nothing, for a time."""

    HALF_OPEN = "half-open"
    """One attempt, on whose end it depends how things go on."""


class Breaker:
    """Opens after failures in a row, and closes after an attempt that works.

    Source: M. Nygard, "Release It!", 2007, chapter 5.

    Args:
        trip_after: How many failures in a row open it.
        backoff: How long it stays open.

    Attributes:
        state: What it lets through.
        trips: How often it opened.
        reason: Why it opened last, for people.
    """

    def __init__(self, trip_after: int, backoff: Backoff) -> None:
        """Closed."""
        self.state = BreakerState.CLOSED
        self.trips = 0
        self.reason = ""
        self._trip_after = trip_after
        self._backoff = backoff
        self._failures = 0

    def failed(self, reason: str) -> int | None:
        """Notes a failure; how long it is open from now on, None if it stays as it is.

        While it is open, failures are those of attempts from before; they change nothing.
        """
        if self.state is BreakerState.OPEN:
            return None
        self._failures += 1
        if self.state is BreakerState.CLOSED and self._failures < self._trip_after:
            return None
        return self.trip(reason)

    def trip(self, reason: str) -> int:
        """Opens it, however few the failures; how long it is open, in nanoseconds."""
        self.state = BreakerState.OPEN
        self.trips += 1
        self.reason = reason
        return self._backoff.next_ns()

    def half_open(self) -> None:
        """Its time is over: one attempt is let through."""
        self.state = BreakerState.HALF_OPEN

    def succeeded(self) -> bool:
        """Notes a success; whether that closed it.

        While it is open that is an attempt from before, which says nothing of the present.
        """
        if self.state is BreakerState.OPEN:
            return False
        self._failures = 0
        if self.state is BreakerState.CLOSED:
            return False
        self.state = BreakerState.CLOSED
        self._backoff.reset()
        return True

    def describe(self) -> dict[str, Any]:
        """How it is, for people and programs."""
        return {"state": self.state.value, "trips": self.trips, "reason": self.reason}
