"""One direction of a connection over an emulated link: bytes in, and the same bytes out, later."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from replay.links.one_way import Carrier
from replay.links.precise_timer import PreciseTimer

WINDOW_BYTES = 4 << 20
"""The most bytes on their way in one direction of a connection, like TCP's own window."""

QUEUE_NS = 20_000_000
"""How long bytes may queue for the link's rate before their senders are held back."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Chunk = tuple[int, bytes | None]
"""When it is due at the other end, and the bytes; b"" is the end of stream, None a reset."""


class Stream:
    """One direction of a connection. Its bytes arrive in order, whatever their delays.

    Args:
        carrier: The direction of the link, shared by all connections.
        chance: Random numbers for this stream's jitter and losses.
        timer: The timer that wakes it.
        opens_ns: Nothing is sent before this time, since a connection takes a round trip to open.
        on_end: Called when the end of the stream was delivered.

    Attributes:
        carrier: As given.
        ended: Whether the end of the stream was delivered.
    """

    def __init__(
        self,
        carrier: Carrier,
        chance: random.Random,
        timer: PreciseTimer,
        opens_ns: int,
        on_end: Callable[[], None],
    ) -> None:
        """Begins without a source or a sink."""
        self.carrier = carrier
        self._chance = chance
        self._timer = timer
        self._opens_ns = opens_ns
        self._on_end = on_end
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._reading = False
        self._writable = True
        self._early: deque[bytes | None] = deque()
        self._chunks: deque[Chunk] = deque()
        self._held_bytes = 0
        self._last_ns = 0
        self._wake_ns = self._pace_ns = 0
        self.ended = False

    # -- source and sink

    def begin_at(self, source: asyncio.Transport) -> None:
        """Reads its bytes from this transport."""
        source.pause_reading()
        self._source = source
        self.pace()

    def end_at(self, sink: asyncio.Transport) -> None:
        """Delivers its bytes to this transport."""
        self._sink = sink
        self.deliver()

    def hold(self) -> None:
        """Stops writing, since the reader doesn't keep up."""
        self._writable = False

    def go_on(self) -> None:
        """Writes again, since the reader keeps up."""
        self._writable = True
        self.deliver()

    @property
    def most_bytes(self) -> int:
        """The most bytes to read at a time."""
        return self.carrier.way.grain_bytes

    # -- bytes in

    def send(self, data: bytes | None) -> None:
        """Puts bytes, the end of the stream (b"") or a reset (None) on the link."""
        self._held_bytes += len(data or b"")
        self._early.append(data)
        if self._source is not None and not self._reading:
            self._source.pause_reading()  # uvloop reads once more after a pause
        self._set_off()

    def _set_off(self) -> None:
        now_ns = time.monotonic_ns()
        if self.carrier.cut_ns is not None:
            return
        if now_ns < self._opens_ns:
            self._timer.call_at(self._opens_ns, self._set_off)
            return
        while self._early:
            data = self._early.popleft()
            if data:
                due_ns = self.carrier.arrival_ns(now_ns, len(data), self._chance)
            else:
                due_ns = now_ns + self.carrier.delay_ns(now_ns)
            self._last_ns = max(self._last_ns, due_ns)
            self._chunks.append((self._last_ns, data))
        self.deliver()

    def pace(self) -> None:
        """Resumes or pauses reading, so that the link takes no more than it can hold."""
        source = self._source
        if source is None or source.is_closing():
            return
        now_ns = time.monotonic_ns()
        room_ns = max(self.carrier.free_ns - QUEUE_NS, self._opens_ns)
        whole = self.carrier.cut_ns is None
        reading = whole and self._held_bytes < WINDOW_BYTES and room_ns <= now_ns
        if whole and room_ns > now_ns and self._pace_ns <= now_ns:
            self._pace_ns = room_ns
            self._timer.call_at(room_ns, self.pace)
        if reading and not self._reading:
            source.resume_reading()
        elif self._reading and not reading:
            source.pause_reading()
        self._reading = reading

    def leave_source(self) -> None:
        """Forgets the source, which is gone."""
        self._source = None

    # -- bytes out

    def deliver(self) -> None:
        """Writes what is due, and schedules itself for the next chunk."""
        now_ns = time.monotonic_ns()
        sink = self._sink
        if sink is not None and self.carrier.cut_ns is None:
            while self._chunks and self._chunks[0][0] <= now_ns and self._writable:
                self._write(sink, self._chunks.popleft()[1])
            if self._chunks and self._writable:
                self._wake_at(self._chunks[0][0], now_ns)
        self.pace()

    def _write(self, sink: asyncio.Transport, data: bytes | None) -> None:
        if data:
            self._held_bytes -= len(data)
            self.carrier.passed_bytes += len(data)
        if sink.is_closing():
            return
        if data is None:
            reset(sink)
        elif data:
            sink.write(data)
        else:
            self._end(sink)

    def _end(self, sink: asyncio.Transport) -> None:
        try:
            sink.write_eof()
        except OSError:  # it broke after its own end of stream, which asyncio doesn't report
            reset(sink)
            return
        self.ended = True
        self._on_end()

    def _wake_at(self, due_ns: int, now_ns: int) -> None:
        if not now_ns < self._wake_ns <= due_ns:
            self._wake_ns = due_ns
            self._timer.call_at(due_ns, self.deliver)

    def later(self, shift_ns: int) -> None:
        """Continues after an outage: everything on its way arrives `shift_ns` later."""
        self._chunks = deque((due_ns + shift_ns, data) for due_ns, data in self._chunks)
        self._last_ns += shift_ns
        self._set_off()


def reset(transport: asyncio.Transport) -> None:
    """Resets a connection: over TCP its peer gets an error rather than an end of stream."""
    peer = transport.get_extra_info("socket")
    if peer is not None and peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
