"""The interface between the links to other boxes and this box."""

from __future__ import annotations

from typing import Any, Protocol

from scheduler import wire
from scheduler.client.connection import Connection
from workers.link import ModelCard


class Introducer(Protocol):
    """What a link asks of this box, and reports to it."""

    def address_of(self, box: str) -> str | None:
        """The current address of a member; None if it is unknown or has left."""

    def introduction(self, connection: Connection) -> wire.Header:
        """The message in which this box introduces itself."""

    def met(self, box: str, value: Any) -> None:
        """A member has answered an introduction.

        Raises:
            ProtocolError: The answer is malformed, or from another box.
        """

    def heard(self, box: str, members: Any) -> None:
        """A member has sent a report, sometimes with gossip about members."""

    def allows(self, box: str, card: ModelCard) -> bool:
        """Whether a member's model may go by its name here; see `Catalog.allows`."""

    def card(self, model: str) -> ModelCard | None:
        """The card of a model, from this box's own files if it has them."""
