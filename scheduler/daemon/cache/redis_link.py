"""A connection to Redis on which requests never wait for long.

Commands of all requests share one connection and are pipelined: each turn of the event loop is one
write. The link is its own circuit breaker: a command that goes unanswered for too long closes it,
nobody uses it while it is closed, and it is reopened in the background with a growing backoff.
redis-py encodes the protocol; its client and pool are not used because they wait for the answer to
one command, or one pipeline, before they send the next on a connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from scheduler.backoff import Backoff
from scheduler.config.cache import why_away, without_secrets
from scheduler.core.figures import figure
from scheduler.daemon.figures import milliseconds


class RedisListener(Protocol):
    """Receives the events of a link."""

    def on_open(self) -> None:
        """The link takes commands."""

    def on_lost(self) -> None:
        """The link no longer takes commands; every `OnReplies` has been called."""

    def on_changed(self, names: Iterable[bytes] | None) -> None:
        """Keys that were read over the link have changed; None means that any may have."""


Replies = list[Any]
"""The reply to each command: its value, or a `ResponseError`."""

OnReplies = Callable[["Replies | None"], None]
"""Called exactly once; with None if the link was lost before Redis answered."""

_CONNECT_S = 2.0
_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = 100_000_000, 5_000_000_000
_OF_USE_S = 10.0
"""After a link has lasted this long, its loss counts as a first failure again."""

_IDLE_S = 1.0
_GRACE_S = 0.002
_UNANSWERED_BYTES = 16 << 20
_SAMPLES = 64

log = structlog.get_logger()


class _Sent(NamedTuple):
    commands: int
    size: int
    at_ns: int
    on_replies: OnReplies


class RedisLink:
    """The connection, re-established whenever it is lost.

    Args:
        url: The Redis, as redis-py takes it.
        timeout_s: How long an answer may take before the link counts as lost.
        listener: Receives the events of the link.

    Attributes:
        open: Whether it takes commands.
        tracks: Whether the server notifies of changes; servers before Redis 6 do not.
        losses: How often it was lost.
        problem: Why it is not open; empty while it is.
    """

    def __init__(self, url: str, timeout_s: float, listener: RedisListener) -> None:
        """Not connected yet; see `keep_connected`."""
        self.open = self.tracks = False
        self.losses = 0
        self.problem = "not connected yet"
        self._url = url
        self._timeout_s = timeout_s
        self._listener = listener
        self._connection: AbstractConnection | None = None
        self._unsent: list[bytes] = []
        self._writable = asyncio.Event()
        self._busy = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._awaited: deque[_Sent] = deque()
        self._unanswered_bytes = 0
        self._latency_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._takes_writes = False

    def status(self) -> dict[str, Any]:
        """The link's URL and state, without secrets."""
        return {
            "url": without_secrets(self._url),
            "open": self.open,
            "problem": self.problem,
            "losses": self.losses,
            "p95_ms": milliseconds(self.p95_ns()) if self.open else None,
        }

    def p95_ns(self) -> int:
        """The p95 response time of recent commands, in nanoseconds."""
        ordered = sorted(self._latency_ns)
        return ordered[int(0.95 * len(ordered))] if ordered else int(self._timeout_s * 1e9)

    def has_room(self) -> bool:
        """Whether it takes large commands; False while too many bytes are unanswered."""
        return self.open and self._unanswered_bytes < _UNANSWERED_BYTES

    def send(self, commands: Sequence[Sequence[Any]], on_replies: OnReplies) -> None:
        """Sends commands with the next write, in order with all others."""
        if not self.open or self._connection is None:
            on_replies(None)
            return
        packed = self._connection.pack_commands(commands)
        size = sum(map(len, packed))
        self._unsent.extend(packed)
        self._unanswered_bytes += size
        self._awaited.append(_Sent(len(commands), size, time.monotonic_ns(), on_replies))
        self._writable.set()
        self._busy.set()

    async def keep_connected(self) -> None:
        """Connects, and reconnects whenever the link is lost, until cancelled."""
        backoff = Backoff(_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS)
        while True:
            opened_s = self._loop.time()
            try:
                await self._connect_in_time()
                log.info(
                    "cache connected", url=without_secrets(self._url), invalidation=self.tracks
                )
                opened_s = self._loop.time()
                await self._serve()
            except asyncio.CancelledError:
                await self._lose("closed")
                raise
            except Exception as error:  # the box can do without its cache
                reason = why_away(error)
                if self.open or reason != self.problem:
                    log.warning("cache away", url=without_secrets(self._url), reason=reason)
                await self._lose(reason)
            if self._loop.time() - opened_s > _OF_USE_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_ns() / 1e9)

    async def _connect_in_time(self) -> None:
        """Connects within `_CONNECT_S`; `asyncio.wait_for` may miss a cancel before Python 3.12."""
        connecting = self._loop.create_task(self._connect())
        try:
            await asyncio.wait({connecting}, timeout=_CONNECT_S)
            if not connecting.done():
                raise RedisError(f"no connection within {_CONNECT_S:g} s")
            connecting.result()
        finally:
            connecting.cancel()
            del connecting  # its error leads back to this frame

    async def _connect(self) -> None:
        """Opens the link once the server has answered a ping within the timeout.

        Raises:
            RedisError, OSError: The server is not there, refuses, or is too slow.
        """
        try:
            await self._greet(protocol=3)
        except ResponseError:  # Redis 5 knows no HELLO
            await self._greet(protocol=2)
        began_ns = time.monotonic_ns()
        await self._ask("PING")
        took_ns = time.monotonic_ns() - began_ns
        if took_ns > self._timeout_s * 1e9:
            raise RedisError(f"an answer took {figure(took_ns / 1e6)} ms")
        self._latency_ns.clear()
        self._latency_ns.append(took_ns)
        self._unsent.clear()
        self._writable.clear()
        self.open, self.problem = True, ""
        self._listener.on_open()

    async def _greet(self, protocol: int) -> None:
        pool = ConnectionPool.from_url(
            self._url,
            protocol=protocol,
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=None,  # `_watch` is cheaper than a timer for each command
            client_name="laxity",
            retry=Retry(NoBackoff(), 0),
        )
        connection = self._connection = pool.make_connection()
        await connection.connect()
        self.tracks = False
        # Only the parser can set the handler, as in redis-py's own synchronous client. The parser
        # of protocol version 2, which a URL may ask for, has none.
        set_handler = getattr(connection._parser, "set_invalidation_push_handler", None)
        if set_handler is not None:
            set_handler(self._on_push)
            answer = await self._ask("CLIENT", "TRACKING", "ON", "NOLOOP")
            self.tracks = not isinstance(answer, ResponseError)

    async def _ask(self, *command: str) -> Any:
        assert self._connection is not None
        await self._connection.send_command(*command, check_health=False)
        return await self._read(self._connection)

    async def _read(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    async def _on_push(self, message: list[Any]) -> None:
        self._listener.on_changed(message[1])

    async def _serve(self) -> None:
        """Sends and receives until an error occurs.

        Raises:
            RedisError, OSError: The error.
        """
        assert self._connection is not None
        work = [
            self._loop.create_task(each)
            for each in (
                self._write_all(self._connection),
                self._read_all(self._connection),
                self._watch(),
            )
        ]
        try:
            for each in (await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION))[0]:
                each.result()
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            # The error of one leads back to this frame, and would keep all that was to be sent.
            work.clear()
            del each

    async def _write_all(self, connection: AbstractConnection) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            unsent, self._unsent = self._unsent, []
            await connection.send_packed_command(unsent, check_health=False)

    async def _read_all(self, connection: AbstractConnection) -> None:
        while True:
            replies = [await self._read(connection)]
            if not self._awaited:
                raise RedisError("an answer to no question")
            sent = self._awaited[0]
            while len(replies) < sent.commands:
                replies.append(await self._read(connection))
            self._check_demoted(replies)
            self._awaited.popleft()
            self._unanswered_bytes -= sent.size
            self._latency_ns.append(time.monotonic_ns() - sent.at_ns)
            sent.on_replies(replies)

    def _check_demoted(self, replies: Replies) -> None:
        """Notices a server that took writes and is now a replica: the URL may lead to another.

        Raises:
            RedisError: It is.
        """
        if self._takes_writes and any(isinstance(reply, ReadOnlyError) for reply in replies):
            self._takes_writes = False
            raise RedisError("it has become read-only")
        self._takes_writes |= b"OK" in replies

    async def _watch(self) -> None:
        """Notices when the server stops answering; pings it while the link is idle.

        Raises:
            RedisError: The server did not answer in time.
        """
        while True:
            timer = self._loop.call_later(_IDLE_S, self._busy.set)
            await self._busy.wait()
            timer.cancel()
            self._busy.clear()
            if not self._awaited:
                self.send([("PING",)], lambda _: None)
            while self._awaited:
                oldest = self._awaited[0]
                await asyncio.sleep(self._timeout_s)
                # If this process was itself paused, the answer may have arrived but not been read.
                await asyncio.sleep(_GRACE_S)
                if self._awaited and self._awaited[0] is oldest:
                    raise RedisError(f"no answer within {self._timeout_s * 1e3:g} ms")

    async def _lose(self, reason: str) -> None:
        was_open, self.open, self.problem = self.open, False, reason
        awaited, self._awaited = self._awaited, deque()
        self._unanswered_bytes = 0
        for sent in awaited:
            sent.on_replies(None)
        if was_open:
            self.losses += 1
            self._listener.on_lost()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
