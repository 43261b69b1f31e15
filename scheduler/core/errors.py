"""What can go wrong with the scheduler itself, as opposed to with a request."""

from __future__ import annotations

from scheduler.core.commands import Command

FOREIGN_FAULTS = (Exception, SystemExit)
"""What foreign code may raise that must end nothing else: `sys.exit` is a way to fail, too."""


class InvariantError(AssertionError):
    """The scheduler's state, or what it is told, contradicts itself."""


class ImpossibleDecision(Exception):
    """A policy decided what can't be done; the message says why and tells the story."""


class PolicyFailed(Exception):
    """The policy raised, or decided the impossible; the state is sound and nothing is lost.

    Attributes:
        commands: What is to be done all the same.
    """

    def __init__(self, message: str, commands: list[Command]) -> None:
        """Keeps the commands of the event during which it happened."""
        super().__init__(message)
        self.commands = commands
