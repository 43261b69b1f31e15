"""The agent's errors, in a module that does not import Ray."""

from __future__ import annotations

from typing import ClassVar

from scheduler.errors import LaxityError


class AgentError(LaxityError):
    """The agent can't serve; the message says what to change."""

    exit_status: ClassVar[int] = 1


def cause_of(error: Exception) -> str:
    """The line of Ray's report about an actor that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rpartition("Error: ")[2] if lines else type(error).__name__
