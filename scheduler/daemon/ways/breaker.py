"""A circuit breaker: when to stop using a target that fails, and when to try it again."""

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
    """One attempt, whose result closes or reopens the breaker."""


class Breaker:
    """Opens after failures in a row, and closes after an attempt that succeeds.

    Source: M. Nygard, "Release It!", 2007, chapter 5.

    Args:
        trip_after: How many failures in a row open it.
        backoff: How long it stays open.

    Attributes:
        state: What it lets through.
        trips: How often it has opened.
        reason: Why it last opened, for people.
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
        """Counts a failure; returns for how many ns the breaker opens, or None if it does not.

        While it is open, failures come from earlier attempts; they change nothing.
        """
        if self.state is BreakerState.OPEN:
            return None
        self._failures += 1
        if self.state is BreakerState.CLOSED and self._failures < self._trip_after:
            return None
        return self.trip(reason)

    def trip(self, reason: str) -> int:
        """Opens the breaker at once, or keeps it open; returns for how long, in nanoseconds."""
        self.trips += self.state is not BreakerState.OPEN
        self.state = BreakerState.OPEN
        self.reason = reason
        return self._backoff.next_ns()

    def half_open(self) -> None:
        """Lets one attempt through, after the open time has passed."""
        self.state = BreakerState.HALF_OPEN

    def succeeded(self) -> bool:
        """Counts a success; returns whether it closed the breaker.

        While it is open, a success comes from an earlier attempt and says nothing about now.
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
        """The state, for people and programs."""
        return {"state": self.state.value, "trips": self.trips, "reason": self.reason}
