"""What the links to other boxes need to know of this one."""

from __future__ import annotations

from typing import Any, Protocol

from scheduler import wire
from scheduler.client.connection import Connection
from workers.link import ModelCard


class Introducer(Protocol):
    """What a link needs to know of this box, and tells it."""

    def address_of(self, box: str) -> str | None:
        """Where a member is reached by now; None while it has left."""

    def introduction(self, connection: Connection) -> wire.Header:
        """The message in which this box says who it is."""

    def met(self, box: str, value: Any) -> None:
        """A member has answered an introduction.

        Raises:
            ProtocolError: The answer is none, or of another box.
        """

    def heard(self, box: str, members: Any) -> None:
        """A member has sent a report, with whom it knows now and then."""

    def has_same(self, card: ModelCard) -> bool:
        """Whether a model of that name is the same one here, or none is here."""

    def card(self, model: str) -> ModelCard | None:
        """What is known here of a model, by this box's own files where it has them."""
