"""How a request can end: a closed set, shared by code, responses, logs and metrics."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """How an accepted request ended."""

    def __str__(self) -> str:
        return self.value

    COMPLETED = "completed"
    """The result was ready within the deadline."""
    LATE = "late"
    """It finished after the deadline, and the caller had asked for late results."""
    INFEASIBLE = "infeasible"
    """No target can meet the deadline; the detail says what would be feasible."""
    OVERLOADED = "overloaded"
    """A queue, memory or quota limit was reached."""
    EXPIRED = "expired"
    """It was admitted, and its deadline passed."""
    CANCELLED = "cancelled"
    """The caller went away or cancelled it."""
    UNAVAILABLE = "unavailable"
    """No healthy target has the model."""
    FAILED = "failed"
    """The runtime failed it in every allowed attempt."""


REFUSALS = frozenset(("infeasible", "overloaded", "unavailable"))
"""Outcomes that refuse a request without trying it."""
