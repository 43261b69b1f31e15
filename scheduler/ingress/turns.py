"""The messages of one connection, some at a time: in between, others have their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from typing import Any

from scheduler.wire import Body, Header

TURN_MESSAGES = 128
"""So many light messages are taken in a row, or one that is not."""

Frames = list[tuple[Header, Body | None]]


class Turns:
    """Has messages taken in their order, and reads no more while some wait.

    One read may bring thousands of them, and goes on for as long as the sender keeps up.

    Args:
        transport: Where they come from.
        light: The types of messages that cost next to nothing to take.
        take: Takes some.
    """

    def __init__(
        self, transport: asyncio.Transport, light: Container[str], take: Callable[[Frames], None]
    ) -> None:
        """None is there."""
        self._transport = transport
        self._light = light
        self._take = take
        self._waiting: deque[Any] = deque()
        self._rests = False
        self._is_stopped = False

    def add(self, frames: Frames) -> None:
        """Messages came; the first of them are taken at once."""
        self._waiting += frames
        if self._waiting:
            self._take_some()

    def stop(self) -> None:
        """The client does not read its answers: take no more from it."""
        self._is_stopped = True
        self._transport.pause_reading()

    def go_on(self) -> None:
        """It does again."""
        self._is_stopped = False
        self._rest()

    def _take_some(self) -> None:
        some: Frames = []
        left = TURN_MESSAGES
        while self._waiting and left > 0:
            frame = self._waiting.popleft()
            left -= 1 if frame[0]["t"] in self._light else TURN_MESSAGES
            some.append(frame)
        self._take(some)
        if left <= 0:
            self._rest()

    def _rest(self) -> None:
        """Takes and reads nothing before the event loop's next turn."""
        if not (self._rests or self._transport.is_closing()):
            self._rests = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._rests = False
        if self._transport.is_closing() or self._is_stopped:
            return
        if self._waiting:
            self._take_some()
        if not (self._rests or self._is_stopped or self._transport.is_closing()):
            self._transport.resume_reading()
