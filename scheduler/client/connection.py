"""One connection to a daemon, from opening and handshake until it is lost."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from scheduler import wire
from scheduler.client.lent_memory import LentMemory, borrowed
from scheduler.client.shown_memory import ShownMemory
from scheduler.client.tls import PERHAPS_TLS, Tls, TlsFailure
from scheduler.errors import ProtocolError, error_from_code
from scheduler.sockets import CLIENT_GIVES_UP_MS, local_host_of, set_up_tcp

if TYPE_CHECKING:
    from scheduler.address import Address

_HANDSHAKE_S = 5.0
_LEAVE_ROUNDS, _LEAVE_ROUND_S = 500, 0.001
_CLOSED = "the daemon closed the connection"
_SOCKET_BUFFER_BYTES = 1024 * 1024
_UNSENT_BYTES = 128 * 1024
"""The most unsent data that the kernel buffers: data in its buffer is sent even if no longer
wanted."""

_ACCEPTED = wire.FrameLimits(header_bytes=1024 * 1024, body_bytes=wire.ANSWER_BYTES)

OnFrame = Callable[["Connection", wire.Header, "wire.Body | None"], None]
OnLost = Callable[["Connection", Exception], None]


class Overhead:
    """The time of a round trip beyond the server's own: its mean plus two deviations.

    The estimator is that of TCP's retransmission timer (RFC 6298), with slower gains because here
    every request is a sample.
    """

    __slots__ = ("_deviation", "_mean", "ns")

    def __init__(self, first_ns: int) -> None:
        """Starts from one sample, the handshake's round trip."""
        self._mean = float(first_ns)
        self._deviation = 0.0
        self.ns = first_ns

    def observe(self, sample_ns: int) -> None:
        """Adds the round trip of one result, less the server's total."""
        error = sample_ns - self._mean
        self._mean += error * 0.0625
        self._deviation += (abs(error) - self._deviation) * 0.0625
        self.ns = max(0, int(self._mean + 2 * self._deviation))

    def refused(self, round_trip_ns: int) -> None:
        """Adds the round trip of a refusal if it is lower; it includes the server's time.

        If requests are refused because the link was once slow, no result would ever correct the
        estimate.
        """
        if round_trip_ns < self.ns:
            self.observe(round_trip_ns)


def _nothing() -> None:
    """The default of `on_room`."""


class Connection(asyncio.BufferedProtocol):
    """The client's end of one connection; `connect` makes one that is ready for use.

    Attributes:
        overhead: The overhead of its round trips.
        limits: The largest frames that the server accepts.
        encodings: The names of the encodings that the server can decode.
        site: The server's site.
        is_full: Whether so much data is unsent that more would have to wait behind it.
        on_room: Called when `is_full` becomes False.
        draining: Whether the server has said goodbye.
        lent: Memory for large bodies; None if the server has lent none.
    """

    def __init__(self, on_frame: OnFrame, on_lost: OnLost) -> None:
        """Starts unconnected; `on_frame` gets the frames after the welcome."""
        self.overhead = Overhead(0)
        self.limits = wire.FrameLimits()
        self.encodings: frozenset[str] = frozenset()
        self.site = ""
        self.is_full = False
        self.on_room: Callable[[], None] = _nothing
        self.draining = False
        self.lent: LentMemory | None = None
        self._shown = ShownMemory()
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader: wire.FrameReader
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._outbox: list[Any] = []
        self._ready = False
        self._failure: Exception | None = None
        self._transport: asyncio.Transport | None = None

    def send(self, parts: Sequence[Any]) -> None:
        """Writes a frame; a lost connection discards it, and `on_lost` follows."""
        self._outbox += parts
        self._flush()

    def send_soon(self, parts: Sequence[Any]) -> None:
        """Writes a frame together with all others of this iteration of the loop.

        uvloop makes a system call for each write; under load that is most of a request's cost.
        """
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += parts

    def _flush(self) -> None:
        outbox = self._outbox
        if outbox and self._transport is not None:
            if len(outbox) == 1:
                self._transport.write(outbox[0])
            else:
                self._transport.writelines(outbox)
        self._outbox = []

    def pause_writing(self) -> None:
        """Called by the transport when its write buffer is full."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Called by the transport when its write buffer is almost empty again."""
        self.is_full = False
        self.on_room()

    def close(self) -> None:
        """Closes once all written data has been sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    @property
    def local_host(self) -> str | None:
        """This end's address on the connection; None if it has none."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return local_host_of(name)

    def fail(self, error: Exception) -> None:
        """Aborts the connection; `on_lost` follows with `error`."""
        if self._failure is None:
            self._failure = error
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Aborts the connection before its welcome, for which nobody waits any more."""
        self._welcome.cancel()
        self.fail(ConnectionAbortedError())

    def check(self) -> None:
        """Checks that the connection is still open.

        Raises:
            Exception: The reason why it is not.
        """
        if self._transport is None:
            raise self._failure or ConnectionResetError(_CLOSED)

    async def greet(self, token: str | None, borrows: bool) -> None:
        """Sends the hello and waits for the welcome.

        Args:
            token: The server's token.
            borrows: Whether memory for large bodies is welcome, as the server may be on this
                machine.

        Raises:
            LaxityError: The server answered with an error instead of a welcome.
            OSError: The connection was lost, or the server did not answer.
        """
        hello: wire.Header = {"t": "hello", "v": wire.VERSION}
        if token:
            hello["token"] = token
        if borrows:
            hello["memory"] = True
        start_ns = time.monotonic_ns()
        self.send(wire.encode(hello))
        await self._welcome
        self.overhead = Overhead(time.monotonic_ns() - start_ns)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport, and sets the socket up for large frames and low latency."""
        self._transport = cast(asyncio.Transport, transport)
        self._reader = wire.FrameReader(_ACCEPTED)
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        set_up_tcp(sock, CLIENT_GIVES_UP_MS, TCP_NOTSENT_LOWAT=_UNSENT_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Parses frames and passes them on; invalid bytes end the connection."""
        try:
            for header, body in self._frames(nbytes):
                if self._ready:
                    self._hear(header, body)
                else:
                    self._handshake(header)
        except (ProtocolError, ConnectionError) as error:
            self.fail(error)

    def _hear(self, header: wire.Header, body: wire.Body | None) -> None:
        match header["t"]:
            case "memory":
                self.lent = borrowed(header)
            case "free":
                self._free(header)
            case "map":
                self.send_soon(wire.encode(self._shown.map(header)))
            case "forget":
                self._shown.forget(header)
            case "result" if "at" in header:
                self._on_frame(self, header, self._copied(header))
            case _:
                self._on_frame(self, header, body)

    def _free(self, header: wire.Header) -> None:
        try:
            if self.lent is not None:
                self.lent.free(header["at"])
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"it frees memory that is not in use: {error}") from None

    def _copied(self, header: wire.Header) -> wire.Body:
        """The body of a result that is in the daemon's memory."""
        body = self._shown.copied(header)
        # It may have been overwritten meanwhile if the daemon has closed the connection, as nothing
        # tells the daemon any more how long to keep it.
        if self._is_closed_there():
            raise ConnectionResetError(_CLOSED)
        self.send_soon(wire.encode({"t": "free", "at": [header["at"]]}))
        return body

    def _is_closed_there(self) -> bool:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), 0)
        return bool(poll.poll(0))

    def _frames(self, nbytes: int) -> list[tuple[wire.Header, wire.Body | None]]:
        try:
            return self._reader.advance(nbytes)
        except ProtocolError as error:
            if self._ready:
                raise
            raise ProtocolError(
                "what answers there does not speak laxity's native protocol; a box does at the "
                "addresses in its listen.native, not at those for http and grpc"
            ) from error

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the reason to whoever waits."""
        self._transport = None
        # The error that is raised leads back to this object; without this, the reader's buffer
        # would be freed only by the garbage collector.
        del self._reader
        error = self._failure or exc or ConnectionResetError(_CLOSED)
        if not self._welcome.done():
            self._welcome.set_exception(error)
        if self._ready:
            self._on_lost(self, error)

    def _handshake(self, header: wire.Header) -> None:
        match header:
            case {"t": "welcome", "v": wire.VERSION, "limits": dict(limits)}:
                header_bytes, body_bytes = limits.get("header_bytes"), limits.get("body_bytes")
                if type(header_bytes) is not int or type(body_bytes) is not int:
                    raise ProtocolError(f"a welcome states its limits, not {limits!r}")
                self.limits = wire.FrameLimits(header_bytes, min(body_bytes, 2**32 - 1))
                self.encodings = frozenset(map(str, header.get("encodings") or ()))
                self.site = str(header.get("site", ""))
                self._ready = True
                if not self._welcome.done():
                    self._welcome.set_result(None)
            case {"t": "welcome"}:
                raise ProtocolError(
                    f"the daemon speaks protocol version {header.get('v')!r}, "
                    f"this client speaks version {wire.VERSION}"
                )
            case {"t": "error", "code": str(code), "message": str(message)}:
                self.fail(error_from_code(code, message, header.get("detail")))
            case _:
                raise ProtocolError(f"the first frame of a daemon is a welcome, not {header!r:.80}")


async def connect(
    address: Address, token: str | None, on_frame: OnFrame, on_lost: OnLost, tls: Tls | None = None
) -> Connection:
    """Opens a connection and completes the handshake.

    Args:
        address: The daemon's address.
        token: The daemon's token.
        on_frame: Called with each frame.
        on_lost: Called when the open connection is lost.
        tls: The files for TLS; by default those that the environment names.

    Raises:
        LaxityError: The daemon answered with an error instead of a welcome.
        OSError: Nothing listens there, or there was no answer.
    """
    loop, tls = asyncio.get_running_loop(), tls or Tls()
    connection = Connection(on_frame, on_lost)
    try:
        await asyncio.wait_for(_open(loop, connection, address, tls), _HANDSHAKE_S)
        greeting = connection.greet(token, borrows=address.scheme == "unix")
        await asyncio.wait_for(greeting, _HANDSHAKE_S)
    except asyncio.TimeoutError:
        connection.abandon()
        raise TimeoutError(f"no answer within {_HANDSHAKE_S:g} s") from None
    except ssl.SSLError as error:
        connection.abandon()
        raise tls.failure(error) from error
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        connection.abandon()
        if address.scheme == "tls":
            raise tls.closed_early() from error
        if address.scheme == "tcp":
            raise TlsFailure(PERHAPS_TLS) from error
        raise
    except BaseException:
        connection.abandon()
        raise
    # Both the welcome and a loss may have happened before this resumed.
    connection.check()
    return connection


async def wait_closed(connections: Collection[Connection]) -> None:
    """Waits up to half a second for closing connections, then aborts those that remain."""
    for _ in range(_LEAVE_ROUNDS):
        if not connections:
            return
        await asyncio.sleep(_LEAVE_ROUND_S)
    for connection in list(connections):
        connection.fail(ConnectionAbortedError("it did not close in time"))
    await asyncio.sleep(0)


async def _open(
    loop: asyncio.AbstractEventLoop, connection: Connection, address: Address, tls: Tls
) -> None:
    if address.scheme == "unix":
        await loop.create_unix_connection(lambda: connection, str(address.path))
        return
    context = tls.context() if address.scheme == "tls" else None
    await loop.create_connection(
        lambda: connection, str(address.host), address.port or 0, ssl=context
    )
