"""A second connection to another box, for what would keep small requests waiting on the first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scheduler import wire
from scheduler.client.connection import Connection
from scheduler.client.large_calls import LARGE_BYTES
from scheduler.errors import LaxityError

OPEN_S = 3.0
"""How long it may take until it can be used."""

RETRY_S = 5.0
"""How long none is looked for after one could not be had."""

OnFrame = Callable[[Connection, wire.Header, "wire.Body | None"], None]
Dial = Callable[[OnFrame, Callable[[Connection, Exception], None]], Awaitable[Connection]]


class LargeWay:
    """Carries requests that bring much, or whose models answer with much.

    Until it is open, they take the first connection.

    Args:
        dial: Connects, and introduces this box.
        on_frame: Told of what comes.
        on_lost: Told when the connection is lost that had been used.
    """

    def __init__(
        self, dial: Dial, on_frame: OnFrame, on_lost: Callable[[Connection, str], None]
    ) -> None:
        """Not wanted yet."""
        self._dial = dial
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._met: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self._models: set[str] = set()

    def note(self, model: str, size: int) -> None:
        """Takes note of an answer: a model that gave a large one gives more of them."""
        if size > LARGE_BYTES:
            self._models.add(model)

    def connection_for(self, model: str, size: int) -> Connection | None:
        """Where a request of some bytes should go; None is the first connection."""
        if size <= LARGE_BYTES and model not in self._models:
            return None
        is_idle = self._connection is None and self._opening is None
        if is_idle and self._loop.time() >= self._not_before_s:
            self._opening = self._loop.create_task(self._open())
        return self._connection

    def close(self) -> None:
        """Hangs up, without a word about what was sent."""
        if self._opening is not None:
            self._opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fail(ConnectionAbortedError("hung up"))

    async def _open(self) -> None:
        connection: Connection | None = None
        self._met = self._loop.create_future()
        try:
            connection = await asyncio.wait_for(self._dial(self._hear, self._lose), OPEN_S)
            await asyncio.wait_for(self._met, OPEN_S)
            self._connection, connection = connection, None
        except (LaxityError, OSError, ValueError, asyncio.TimeoutError):
            self._not_before_s = self._loop.time() + RETRY_S
        finally:
            self._opening = None
            if connection is not None:
                connection.fail(ConnectionAbortedError("hung up"))

    def _hear(self, connection: Connection, header: wire.Header, body: wire.Body | None) -> None:
        # What a box says of itself it says on both connections.
        if header["t"] in ("result", "error") and header.get("id"):
            self._on_frame(connection, header, body)
        elif self._met is not None and not self._met.done() and header.get("id") == 0:
            if header["t"] == "reply":
                self._met.set_result(None)
            else:
                self._met.set_exception(LaxityError(str(header.get("message"))))

    def _lose(self, connection: Connection, error: Exception) -> None:
        if self._met is not None and not self._met.done():
            self._met.set_exception(error)
        if connection is self._connection:
            self._connection = None
            self._on_lost(connection, str(error) or type(error).__name__)
