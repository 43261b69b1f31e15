"""What can go wrong with an agent; apart from what imports Ray."""

from __future__ import annotations

from pathlib import Path

from scheduler.errors import LaxityError


class AgentError(LaxityError):
    """The agent can't serve; the message says what to change."""


def unwritable(state_dir: Path, error: OSError) -> AgentError:
    """What to say where the state folder can't be written to."""
    return AgentError(
        f"state_dir {state_dir} can't be written to: {error.strerror}; name another folder"
    )


def cause_of(error: Exception) -> str:
    """The one line of Ray's report about an actor that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rpartition("Error: ")[2] if lines else type(error).__name__
