"""A separate connection for calls with large bodies, so that small ones don't wait behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from scheduler import wire
from scheduler.client.call import Call
from scheduler.errors import LaxityError

if TYPE_CHECKING:
    from scheduler.client.exchange import Exchange

LARGE_BYTES = 1024 * 1024
"""The size of a unix socket's buffer; a larger body keeps later messages waiting."""

LARGE_BYTES_TCP = 64 * 1024
"""Over TCP every body keeps later messages waiting, and links are slow: a camera's frame takes some
200 ms at 40 Mbit/s, and a body of this size 13 ms."""

_OPENING_NS = 20_000_000
"""A call with less time than this can't count on the other connection, if that is not open yet."""

_AHEAD_S = 1.0
"""How long to try to open it where no call waits for it."""


class LargeCalls:
    """Takes the calls that would keep others waiting, and carries them separately.

    Args:
        new_exchange: Makes the exchange that carries them; called for the first large call.
        large_bytes: Bodies of more bytes than this are large.
        is_local: Whether the daemon is on this machine, where even a large body takes little time.
    """

    def __init__(
        self, new_exchange: Callable[[], Exchange], large_bytes: float, is_local: bool
    ) -> None:
        """Starts without a connection."""
        self._is_local = is_local
        self._new_exchange = new_exchange
        self._large_bytes = large_bytes
        self._models: set[str] = set()
        self._exchange: Exchange | None = None
        self._opening: asyncio.Task[None] | None = None

    def without(self, calls: tuple[Call, ...], is_free: bool) -> tuple[Call, ...]:
        """Sends the large calls, and returns the others.

        While the separate connection opens, a call that can't wait for it is none of them.

        Args:
            calls: The calls.
            is_free: Whether nothing waits to be sent on the open first connection.
        """
        large = [call for call in calls if self._is_large(call)]
        if not large:
            return calls
        if self._exchange is None:
            self._exchange = self._new_exchange()
        if is_free and self._is_local and not self._exchange.is_open:
            soon_ns = time.monotonic_ns() + _OPENING_NS
            large = [call for call in large if call.deadline_ns > soon_ns]
            self._open_ahead(self._exchange)
        self._exchange.start(*large)
        return tuple(call for call in calls if call not in large)

    def _open_ahead(self, exchange: Exchange) -> None:
        """Opens the separate connection although no call waits for it."""

        async def open_it() -> None:
            with suppress(LaxityError):  # the calls that need it are told
                await exchange.connect(_AHEAD_S)

        if self._opening is None or self._opening.done():
            self._opening = exchange.loop.create_task(open_it())

    def note(self, call: Call, body: wire.Body | None) -> bool:
        """Records an answer: a model that gave a large one will give more of them.

        Returns:
            Whether it was a large one: the next will come on the other connection.
        """
        is_large = body is not None and len(body) > self._large_bytes and call.is_infer
        if is_large:
            self._models.add(call.header["model"])
        return is_large

    def cancel(self, call_id: int) -> None:
        """Drops a call, if it is one of these."""
        if self._exchange is not None:
            self._exchange.cancel(call_id)

    def close(self) -> None:
        """Cancels calls in flight and closes the connection."""
        if self._exchange is not None:
            self._exchange.close()

    async def wait_closed(self) -> None:
        """After `close`, waits until the connection is closed."""
        if self._exchange is not None:
            await self._exchange.wait_closed()

    def _is_large(self, call: Call) -> bool:
        return call.body_bytes > self._large_bytes or (
            bool(self._models) and call.header.get("model") in self._models
        )
