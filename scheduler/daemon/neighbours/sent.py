"""A forwarded request: in flight to another box, or there."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.client.connection import Connection
from scheduler.core.commands import Dispatch
from scheduler.daemon.ways.giving_up import is_early
from scheduler.daemon.ways.shrinking import Shrinking, Shrunk


@dataclass(slots=True)
class Sent:
    """A forwarded request.

    Attributes:
        dispatch: The command to send it.
        at_ns: When the command came.
        budget_ns: The budget that the other box was given for it.
        size: Size of its inputs, in bytes.
        sent_size: Size of its inputs as sent, in bytes.
        shrinking: The model's smaller forms when the command came; None if it asks for none.
        shrunk: The inputs in a smaller form; None if they are sent unchanged.
        connection: The connection it was sent over; None before.
        cancelled: Whether it was cancelled.
    """

    dispatch: Dispatch
    at_ns: int
    budget_ns: int
    size: int
    sent_size: int
    shrinking: Shrinking | None = None
    shrunk: Shrunk | None = None
    connection: Connection | None = None
    cancelled: bool = False

    @property
    def what(self) -> tuple[str, str]:
        """The model and the variant."""
        return self.dispatch.model, self.dispatch.variant

    def took_ns(self, now_ns: int) -> int:
        """How long the way there and back and the other box have taken, without the shrinking."""
        return now_ns - self.at_ns - (self.shrunk.took_ns if self.shrunk is not None else 0)

    def is_over_early(self, code: str, now_ns: int) -> bool:
        """Whether the box gave it up long before its budget ended, and so would again."""
        if code not in ("cancelled", "expired") or self.cancelled:
            return False
        return is_early(now_ns - self.at_ns, self.budget_ns)
