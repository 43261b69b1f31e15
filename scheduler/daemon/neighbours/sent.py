"""A request that is on its way to another box, or there."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.client.connection import Connection
from scheduler.core.commands import Dispatch
from scheduler.daemon.ways.giving_up import is_early
from scheduler.daemon.ways.shrinking import Shrunk


@dataclass(slots=True)
class Sent:
    """What is known of it.

    Attributes:
        dispatch: The command to send it.
        at_ns: When that was.
        budget_ns: What the other box was told to have for it.
        size: Its inputs, in bytes.
        sent_size: The same as they were sent.
        shrunk: The inputs in a smaller form; None where they went as they are.
        connection: What it was sent over; None before.
        cancelled: Whether nobody waits for it any more.
    """

    dispatch: Dispatch
    at_ns: int
    budget_ns: int
    size: int
    sent_size: int
    shrunk: Shrunk | None = None
    connection: Connection | None = None
    cancelled: bool = False

    @property
    def what(self) -> tuple[str, str]:
        """The model and the variant."""
        return self.dispatch.model, self.dispatch.variant

    def is_over_early(self, code: str, now_ns: int) -> bool:
        """Whether the box gives it up long before its time is over, and would again."""
        if code not in ("cancelled", "expired") or self.cancelled:
            return False
        return is_early(now_ns - self.at_ns, self.budget_ns)
