"""The seam between the driver and work that runs only where requests leave room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scheduler.daemon.submission import Submission


class Background(Protocol):
    """Work below all requests."""

    def make_way(self, arriving: Sequence[Submission]) -> None:
        """Requests are about to be submitted: what is not dispatched yet must be withdrawn."""

    def look(self) -> None:
        """Something has changed, so there may be room; it must not submit before it returns."""
