"""Asks an address, once, which box is there, and says why none is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler import wire
from scheduler.address import Address
from scheduler.client.connection import Connection, connect
from scheduler.client.tls import TlsFailure
from scheduler.daemon.neighbours.meeting import Meeting
from scheduler.errors import LaxityError, Unauthorized

Introduce = Callable[[Connection], wire.Header]
"""Makes the message in which this box introduces itself."""


async def ask(address: Address, token: str | None, introduce: Introduce) -> Any:
    """Sends an introduction to the box at an address, and returns its answer.

    Raises:
        LaxityError: The box refuses.
        OSError: The address can't be reached.
    """
    meeting = Meeting()

    def on_frame(_connection: Connection, header: wire.Header, _body: wire.Body | None) -> None:
        if meeting.awaits(header):
            meeting.take(header)

    connection = await connect(address, token, on_frame, lambda _, error: meeting.fail(error))
    try:
        connection.send(wire.encode(introduce(connection)))
        return await meeting.answer()
    finally:
        connection.close()


def is_refusal(error: Exception) -> bool:
    """Whether the box at the other end said no, which passes only when somebody changes something.

    The same goes for its certificate. Otherwise nothing answers there at the moment.
    """
    if isinstance(error, TlsFailure):  # a box that ends hangs up in the middle of a handshake
        return not isinstance(error.__cause__, ConnectionError)
    return isinstance(error, LaxityError | ValueError)


def said(error: Exception) -> str:
    """Why a box was not reached, for people."""
    if isinstance(error, Unauthorized):  # its own words are for callers
        return "it refuses this box's token (neighbours.token_file, else token_file)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "it does not answer"
