"""What can go wrong with an agent; apart from what imports Ray."""

from __future__ import annotations


class AgentError(Exception):
    """The agent can't serve; the message says what to change."""
