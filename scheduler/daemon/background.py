"""The seam between the driver and background work, which runs only where requests leave room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scheduler.daemon.submission import Submission


class Background(Protocol):
    """Work that ranks below all requests."""

    def make_way(self, arriving: Sequence[Submission]) -> None:
        """Withdraws background work not yet dispatched: requests are about to be submitted."""

    def look(self) -> None:
        """Called after each event, when there may be room; must not submit before it returns."""
