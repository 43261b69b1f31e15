"""Asks an address, once, which box is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scheduler import wire
from scheduler.address import Address
from scheduler.client.connection import Connection, connect
from scheduler.errors import LaxityError

Introduce = Callable[[Connection], wire.Header]
"""Makes the message in which this box introduces itself."""


async def ask(address: Address, token: str | None, introduce: Introduce) -> Any:
    """Sends an introduction to the box at an address, and returns its answer.

    Raises:
        LaxityError: The box refuses.
        OSError: The address can't be reached.
    """
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_frame(_connection: Connection, header: wire.Header, _body: wire.Body | None) -> None:
        if header.get("id") != 0 or answer.done():
            return
        if header["t"] == "reply":
            answer.set_result(header.get("value"))
        elif header["t"] == "error":
            answer.set_exception(LaxityError(str(header.get("message"))))

    def on_lost(_connection: Connection, error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    connection = await connect(address, token, on_frame, on_lost)
    try:
        connection.send(wire.encode(introduce(connection)))
        return await answer
    finally:
        connection.close()
