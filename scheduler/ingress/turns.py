"""Handles the messages of a connection in portions, so that others get their turn in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from scheduler.wire import Body, Header

TURN_MESSAGES = 128
"""How many light messages, or one heavy one, are taken per turn of the event loop."""

_BYTES_OF_ONE = 1024
"""Bytes of headers that take as long to unpack as a light message takes to handle."""

_RENEW_BELOW = TURN_MESSAGES // 2
"""A share is renewed only below this. A turn that used less leaves enough for the next, without the
cost of a callback."""

Frames = list[tuple[Header, Body | None]]


class Share:
    """The work that one tenant, or one connection, may have done per turn of the event loop.

    Attributes:
        left: What is left in this turn, in light messages; a negative value counts against the
            next turn.
    """

    def __init__(self) -> None:
        """Starts with all of it left."""
        self.left = TURN_MESSAGES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def used(self) -> None:
        """Has the share renewed in the next turn, if little is left."""
        if self.left < _RENEW_BELOW:
            self._renew_soon()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Calls back in a later turn, once the share has something left."""
        self._waiting.append(go_on)
        self._renew_soon()

    def spread(self, do: Callable[[Any], None], things: deque[Any]) -> None:
        """Calls `do` with each of many things, in as many turns as the share requires."""
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
    """Handles messages in their order, and pauses reading while some wait.

    One read may bring thousands of messages, and reading never ends while the sender keeps up.

    Args:
        transport: The connection.
        light: The types of messages that cost next to nothing to take.
        take: Called with the messages of a turn.

    Attributes:
        share: The share that messages are charged to; other connections may use it too.
    """

    def __init__(
        self, transport: asyncio.Transport, light: Container[str], take: Callable[[Frames], None]
    ) -> None:
        """Starts with no messages."""
        self._transport = transport
        self.share = Share()
        self._light = light
        self._take = take
        self._waiting: deque[Any] = deque()
        self._rests = False
        self._is_stopped = False
        self._last = self._paid = 0

    def add(self, frames: Frames, header_bytes: int) -> None:
        """Queues received messages, whose headers have so many bytes, and takes the first ones."""
        cost = header_bytes // _BYTES_OF_ONE
        self.share.left -= max(0, cost - self._paid)
        self._last, self._paid = cost, 0
        self._waiting += frames
        if self._waiting:
            self._take_some()

    def stop(self) -> None:
        """Stops reading and taking messages, because the client does not read its answers."""
        self._is_stopped = True
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Continues after `stop`."""
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
        """Takes and reads nothing until the share has something left, in a later turn."""
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
            # Charge a read as large as the last one in advance: every connection that resumes
            # reading may bring as much at once.
            self._paid = self._last
            self.share.left -= self._paid
            self._transport.resume_reading()
