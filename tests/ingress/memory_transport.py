"""An HTTP door whose connections are memory, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, cast

import httptools

from scheduler.ingress.http.door import HttpDoor
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.messages import Response
from scheduler.ingress.http.turn import Turn
from scheduler.tenants import Access

LIMITS = HttpLimits(
    head_bytes=2_000,
    body_bytes=500_000,
    json_bytes=100_000,
    held_bytes=600_000,
    connections=3,
    pipelined=4,
    request_s=0.05,
    idle_s=60,
)


class Transport(asyncio.Transport):
    """What a connection writes to in a test."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.closed = self.paused = self.ended = False
        self.unread: list[int] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.out += data

    def writelines(self, parts: Any) -> None:
        self.out += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return self.unread.pop(0) if self.unread else 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Peer:
    """A client of a door, without a socket."""

    def __init__(self, door: HttpDoor) -> None:
        self.transport = Transport()
        self.protocol = door()
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes, piece: int = 1 << 30) -> None:
        """Gives the connection bytes, in pieces of some size."""
        while data and not self.transport.closed:
            buffer = cast(memoryview, self.protocol.get_buffer(-1))
            size = min(len(buffer), piece, len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer so far."""
        return read_answers(bytes(self.transport.out))


def read_answers(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    class Reader:
        body = b""

        def on_body(self, body: bytes) -> None:
            self.body += body

        def on_message_complete(self) -> None:
            if parser.get_status_code() != 100:
                found.append((parser.get_status_code(), self.body))
            self.body = b""

    parser = httptools.HttpResponseParser(Reader())
    parser.feed_data(data)
    return found


def echo(turn: Turn) -> None:
    turn.answer(Response(200, (bytes(turn.request.body),), "text/plain"))


@contextlib.contextmanager
def a_door() -> Iterator[HttpDoor]:
    """A door on a loop that runs only where a test lets it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def make() -> HttpDoor:
        return HttpDoor(LIMITS, Access(), echo, host_names=["a"])

    try:
        yield loop.run_until_complete(make())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@contextlib.contextmanager
def running(door: HttpDoor) -> Iterator[None]:
    """The door's loop counts as running, as it does where a transport calls."""
    asyncio._set_running_loop(door._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


def wait(door: HttpDoor, seconds: float) -> None:
    asyncio._set_running_loop(None)
    door._loop.run_until_complete(asyncio.sleep(seconds))
    asyncio._set_running_loop(door._loop)


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v2 HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
