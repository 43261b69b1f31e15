"""How a request may end: a closed set, shared by code, answers, logs and metrics."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """The one way in which an accepted request ended."""

    def __str__(self) -> str:
        return self.value

    COMPLETED = "completed"
    """The result was there within the deadline."""
    LATE = "late"
    """Finished after the deadline, and the caller had asked for late results."""
    INFEASIBLE = "infeasible"
    """No target can meet the deadline; the detail holds what would be feasible."""
    OVERLOADED = "overloaded"
    """A queue, memory or quota limit."""
    EXPIRED = "expired"
    """Admitted, and the deadline passed."""
    CANCELLED = "cancelled"
    """The caller went away or cancelled."""
    UNAVAILABLE = "unavailable"
    """No healthy target has the model."""
    FAILED = "failed"
    """The runtime failed it after the allowed attempts."""
