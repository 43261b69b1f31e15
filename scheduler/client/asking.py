"""A question to a box that is the first message of its connection, and the reply to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scheduler import wire
from scheduler.address import Address
from scheduler.client.connection import Connection, connect
from scheduler.errors import ERRORS, LaxityError

FIRST_ID = 0
"""The id of such a question."""


class Reply:
    """The reply that is awaited."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._answer: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()

    async def answer(self) -> tuple[Any, bytes]:
        """Waits for the value and the body of the reply.

        Raises:
            LaxityError: The box refuses.
            Exception: Why the connection was lost.
        """
        return await self._answer

    def awaits(self, header: wire.Header) -> bool:
        """Whether a message is the reply or a refusal, which is taken only once."""
        is_answer = header.get("id") == FIRST_ID and header["t"] in ("reply", "error")
        return is_answer and not self._answer.done()

    def take(self, header: wire.Header, body: wire.Body | None = None) -> None:
        """Takes the message that is awaited."""
        if header["t"] == "reply":
            self._answer.set_result((header.get("value"), bytes(body or b"")))
        else:
            kind = ERRORS.get(str(header.get("code")), LaxityError)
            self._answer.set_exception(kind(str(header.get("message"))))

    def fail(self, error: Exception) -> None:
        """Ends the wait, unless it is over, because the connection was lost."""
        if not self._answer.done():
            self._answer.set_exception(error)

    def give_up(self) -> None:
        """Ends the wait, unless it is over, because nobody wants the reply any more."""
        self._answer.cancel()


async def ask(
    address: Address, token: str | None, question: Callable[[Connection], wire.Header]
) -> tuple[Any, bytes]:
    """Asks the box at an address, and returns the value and the body of its reply.

    Args:
        address: The address of its native door.
        token: The token to show there.
        question: Makes the message; its id is filled in.

    Raises:
        LaxityError: The box refuses.
        OSError: The address can't be reached, or the connection was lost.
    """
    reply = Reply()

    def on_frame(_connection: Connection, header: wire.Header, body: wire.Body | None) -> None:
        if reply.awaits(header):
            reply.take(header, body)

    connection = await connect(address, token, on_frame, lambda _, error: reply.fail(error))
    try:
        connection.send(wire.encode({**question(connection), "id": FIRST_ID}))
        return await reply.answer()
    finally:
        connection.close()
        await asyncio.sleep(0)  # the connection closes in the loop's next iteration
