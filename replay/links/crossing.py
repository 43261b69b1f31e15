"""A connection over an emulated link: two ends, and a stream of bytes in each direction."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import cast

from replay.links.one_way import MOST_READ_BYTES, Carrier
from replay.links.precise_timer import PreciseTimer
from replay.links.stream import Stream, reset


class Crossing:
    """A connection from its caller, over the link, to the link's destination.

    Args:
        up: The direction from the caller.
        down: The direction back to the caller.
        seed: The seed of its jitter and losses.
        timer: The timer that wakes it.
        on_begun: Called once when the caller's end is connected.
        on_gone: Called once when both ends are gone.

    Attributes:
        dial_ns: When the connection to the destination is opened.
        up: What the caller sends.
        down: What comes back.
        near: The caller's end.
        far: The destination's end.
    """

    def __init__(
        self,
        up: Carrier,
        down: Carrier,
        seed: str,
        timer: PreciseTimer,
        on_begun: Callable[[Crossing], None],
        on_gone: Callable[[Crossing], None],
    ) -> None:
        """Begins now, with neither end connected."""
        began_ns = time.monotonic_ns()
        self.dial_ns = began_ns + up.delay_ns(began_ns)
        opens_ns = self.dial_ns + down.delay_ns(began_ns)
        self.up = Stream(up, random.Random(f"{seed}/up"), timer, opens_ns, self._ended)
        self.down = Stream(down, random.Random(f"{seed}/down"), timer, 0, self._ended)
        self.near = End(self.up, self.down, self._lost, lambda: on_begun(self))
        self.far = End(self.down, self.up, self._lost)
        self._on_gone = on_gone

    def break_off(self) -> None:
        """Resets both ends at once."""
        for end in (self.near, self.far):
            if end.transport is not None:
                reset(end.transport)

    def _ended(self) -> None:
        if self.up.ended and self.down.ended:
            for end in (self.near, self.far):
                if end.transport is not None:
                    end.transport.close()

    def _lost(self) -> None:
        if self.near.transport is None and self.far.transport is None:
            self._on_gone(self)


class End(asyncio.BufferedProtocol):
    """The point where a connection enters or leaves the link.

    Args:
        out: The stream of bytes read here.
        back: The stream of bytes written here.
        on_lost: Called once when the connection is lost at this end.
        on_made: Called once when it is made.

    Attributes:
        transport: The transport it reads and writes; None before it is made and after it is lost.
    """

    def __init__(
        self,
        out: Stream,
        back: Stream,
        on_lost: Callable[[], None],
        on_made: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins without a transport."""
        self._out = out
        self._back = back
        self._on_lost = on_lost
        self._on_made = on_made
        self._buffer = bytearray(MOST_READ_BYTES)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's isn't a subclass
        self._out.begin_at(self.transport)
        self._back.end_at(self.transport)
        self._on_made()

    def get_buffer(self, sizehint: int) -> memoryview:
        """As asyncio calls it: room for no more than the link should take at a time."""
        return memoryview(self._buffer)[: self._out.most_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """As asyncio calls it."""
        self._out.send(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> bool:
        """As asyncio calls it; the other direction stays open."""
        self._out.leave_source()
        self._out.send(b"")
        return True

    def pause_writing(self) -> None:
        """As asyncio calls it."""
        self._back.hold()

    def resume_writing(self) -> None:
        """As asyncio calls it."""
        self._back.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it. The other end learns of it after the link's delay."""
        self._out.leave_source()
        self._back.go_on()
        self._out.send(None)
        self.transport = None
        self._on_lost()
