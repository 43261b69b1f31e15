"""Asking an address which box is there, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scheduler import wire
from scheduler.address import Address
from scheduler.client.connection import Connection, connect
from scheduler.errors import LaxityError

Introduce = Callable[[Connection], wire.Header]
"""Makes the message in which this box says who it is."""


async def ask(address: Address, token: str | None, introduce: Introduce) -> Any:
    """What the box at an address answers to an introduction.

    Raises:
        LaxityError: It refuses.
        OSError: Nobody is there.
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
