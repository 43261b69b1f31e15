"""The messages of one connection, some at a time: in between, others have their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from scheduler.wire import Body, Header

TURN_MESSAGES = 128
"""So many light messages are taken in a row, or one that is not."""

_BYTES_OF_ONE = 1024
"""Of headers; to unpack so many takes as long as to take a light message."""

_RENEW_BELOW = TURN_MESSAGES // 2
"""A turn that used little leaves enough for the next, and costs no callback."""

Frames = list[tuple[Header, Body | None]]


class Share:
    """What one party has taken in one turn of the event loop, over whatever connections.

    Attributes:
        left: How much more, in light messages; what is below zero is of the next turn's.
    """

    def __init__(self) -> None:
        """All of it is left."""
        self.left = TURN_MESSAGES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def used(self) -> None:
        """Something has been taken."""
        if self.left < _RENEW_BELOW:
            self._renew_soon()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Calls back in one of the next turns, when there is some for it."""
        self._waiting.append(go_on)
        self._renew_soon()

    def spread(self, do: Callable[[Any], None], things: deque[Any]) -> None:
        """Does something with each of many things: now, and in the next turns what is too much."""
        while things and self.left > 0:
            self.left -= 1
            do(things.popleft())
        self.used()
        if things:
            self.wait(partial(self.spread, do, things))

    def _renew_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._is_due = False
        self.left = min(self.left, 0) + TURN_MESSAGES
        try:
            while self._waiting and self.left > 0:
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._renew_soon()


class Turns:
    """Has messages taken in their order, and reads no more while some wait.

    One read may bring thousands of them, and goes on for as long as the sender keeps up.

    Args:
        transport: Where they come from.
        light: The types of messages that cost next to nothing to take.
        take: Takes some.

    Attributes:
        share: What it takes them out of; others may do so, too.
    """

    def __init__(
        self, transport: asyncio.Transport, light: Container[str], take: Callable[[Frames], None]
    ) -> None:
        """None is there."""
        self._transport = transport
        self.share = Share()
        self._light = light
        self._take = take
        self._waiting: deque[Any] = deque()
        self._rests = False
        self._is_stopped = False
        self._last = self._paid = 0

    def add(self, frames: Frames, header_bytes: int) -> None:
        """Messages came, whose headers have so many bytes; the first are taken at once."""
        cost = header_bytes // _BYTES_OF_ONE
        self.share.left -= max(0, cost - self._paid)
        self._last, self._paid = cost, 0
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
        share = self.share
        left = share.left
        while self._waiting and left > 0:
            frame = self._waiting.popleft()
            left -= 1 if frame[0]["t"] in self._light else TURN_MESSAGES
            some.append(frame)
        share.left = left
        share.used()
        if some:
            self._take(some)
        if self._waiting or left <= 0:
            self._rest()

    def _rest(self) -> None:
        """Takes and reads nothing before there is something left, in another turn of the loop."""
        if not (self._rests or self._transport.is_closing()):
            self._rests = True
            self._transport.pause_reading()
            self.share.wait(self._next)

    def _next(self) -> None:
        self._rests = False
        if self._transport.is_closing() or self._is_stopped:
            return
        if self._waiting:
            self._take_some()
        if not (self._rests or self._is_stopped or self._transport.is_closing()):
            # As much may come at once on every connection that is read again.
            self._paid = self._last
            self.share.left -= self._paid
            self._transport.resume_reading()
