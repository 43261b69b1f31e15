"""The answer that a box awaits to its introduction, which is the first message of a connection."""

from __future__ import annotations

import asyncio
from typing import Any

from scheduler import wire
from scheduler.errors import LaxityError


class Meeting:
    """Whether another box accepts an introduction, which has the id 0."""

    def __init__(self) -> None:
        """Awaits the answer."""
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def answer(self) -> Any:
        """Waits for the value of the answer.

        Raises:
            LaxityError: The other box refuses.
            Exception: Why the connection was lost.
        """
        return await self._answer

    def awaits(self, header: wire.Header) -> bool:
        """Whether a message is the answer, which is taken only once."""
        is_answer = header.get("id") == 0 and header["t"] in ("reply", "error")
        return is_answer and not self._answer.done()

    def take(self, header: wire.Header) -> None:
        """Takes the answer."""
        if header["t"] == "reply":
            self._answer.set_result(header.get("value"))
        else:
            self._answer.set_exception(LaxityError(str(header.get("message"))))

    def fail(self, error: Exception) -> None:
        """Ends the meeting, unless it is over, because the connection was lost."""
        if not self._answer.done():
            self._answer.set_exception(error)

    def give_up(self) -> None:
        """Ends the meeting, unless it is over, because nobody waits for it any more."""
        self._answer.cancel()
