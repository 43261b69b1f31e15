"""A second connection to another box, for large messages that would delay small requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scheduler import wire
from scheduler.client.asking import Reply
from scheduler.client.connection import Connection, OnFrame, OnLost
from scheduler.daemon.ways.meter import BULK_BYTES, WayMeter
from scheduler.errors import LaxityError

LARGE_BYTES = BULK_BYTES
"""A message of more bytes is large, and so is ..."""

LARGE_NS = 100_000_000
"""... one whose bytes take longer than this on the way. The reports on the first connection would
wait as long, and a box without reports counts as lost."""

OPEN_S = 3.0
"""Timeout of each step of opening it."""

RETRY_S = 5.0
"""How long not to try again after it could not be opened."""

Dial = Callable[[OnFrame, OnLost], Awaitable[Connection]]


class LargeWay:
    """Carries large requests, and requests to models with large answers.

    Where it can't be opened, they use the first connection.

    Args:
        meter: Knows how fast the way is.
        dial: Connects, and introduces this box.
        on_frame: Called with answers that arrive.
        on_lost: Called when the open connection is lost.
    """

    def __init__(
        self,
        meter: WayMeter,
        dial: Dial,
        on_frame: OnFrame,
        on_lost: Callable[[Connection, str], None],
    ) -> None:
        """Not needed yet."""
        self._meter = meter
        self._dial = dial
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._reply = Reply()
        self._opening: asyncio.Task[None] | None = None
        self._not_before_s = 0.0
        self._models: set[str] = set()

    def note(self, model: str, size: int) -> None:
        """Notes the size of an answer: a model that gave one large answer will give more."""
        if self._is_large(size):
            self._models.add(model)

    def connection_for(self, model: str, size: int) -> Connection | None:
        """The connection for a request of this size; None means the first connection."""
        return self._connection if self._carries(model, size) else None

    def opening_for(self, model: str, size: int) -> asyncio.Task[None] | None:
        """What a request of this size has to wait for before it can be sent; None if nothing."""
        if not self._carries(model, size):
            return None
        is_idle = self._connection is None and self._opening is None
        if is_idle and self._loop.time() >= self._not_before_s:
            self._opening = self._loop.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return self._opening

    def _carries(self, model: str, size: int) -> bool:
        return self._is_large(size) or model in self._models

    def _is_large(self, size: int) -> bool:
        return size > LARGE_BYTES or size * self._meter.byte_ns > LARGE_NS

    def close(self) -> None:
        """Hangs up without reporting requests in flight as lost."""
        if self._opening is not None:
            self._opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fail(ConnectionAbortedError("hung up"))

    async def _open(self) -> None:
        connection: Connection | None = None
        self._reply = Reply()
        try:
            connection = await asyncio.wait_for(self._dial(self._hear, self._lose), OPEN_S)
            await asyncio.wait_for(self._reply.answer(), OPEN_S)
            connection.check()  # it may have been lost before this resumed
            self._connection, connection = connection, None
        except (LaxityError, OSError, ValueError, asyncio.TimeoutError):
            self._not_before_s = self._loop.time() + RETRY_S
        finally:
            if connection is not None:
                connection.fail(ConnectionAbortedError("hung up"))

    def _opened(self, _task: asyncio.Task[None]) -> None:
        """Called even if the task was cancelled before it began."""
        self._opening = None

    def _hear(self, connection: Connection, header: wire.Header, body: wire.Body | None) -> None:
        # A box sends its reports on both connections; only answers are needed from this one.
        if header["t"] in ("result", "error") and header.get("id"):
            self._on_frame(connection, header, body)
        elif self._reply.awaits(header):
            self._reply.take(header)

    def _lose(self, connection: Connection, error: Exception) -> None:
        self._reply.fail(error)
        if connection is self._connection:
            self._connection = None
            self._on_lost(connection, str(error) or type(error).__name__)
