"""Sends calls and matches answers, over reconnecting connections.

Everything that decides how a client's call ends is in this file. All of it runs on one event loop;
`post` is the only entrance from other threads.
"""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import InvalidStateError
from copy import copy
from typing import Any

from scheduler import wire
from scheduler.client.call import Call
from scheduler.client.connection import Connection, OnFrame, wait_closed
from scheduler.client.deadlines import Deadlines
from scheduler.client.dialer import Dialer
from scheduler.client.inbox import Inbox
from scheduler.client.large_calls import LARGE_BYTES, LARGE_BYTES_TCP, LargeCalls
from scheduler.client.late_endings import expired, in_callers_terms, lost_ns, too_late
from scheduler.client.tls import Tls
from scheduler.core.outcomes import Outcome
from scheduler.errors import (
    DeadlineInfeasible,
    InvalidInput,
    LaxityError,
    ProtocolError,
    Unauthorized,
    Unavailable,
    error_from_code,
)
from scheduler.result import result_from

_MAX_SENDS = 5

_FILLS_WRITE_BYTES = 65_536
"""Bodies from this size on gain nothing from sharing a write with others."""


class Exchange:
    """Sends calls, ends each exactly once, and keeps a connection open while it is needed.

    Calls whose body or answer is large use a second connection.

    Attributes:
        losses: How often a daemon was lost or began to drain; the next one may have other models.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        token: str | None,
        tls: Tls | None = None,
        first: Exchange | None = None,
    ) -> None:
        """Connects on the first call or on `connect`.

        Args:
            loop: The loop on which it lives.
            url: The daemon's address.
            token: Shown to the daemon.
            tls: For a `tls://` address.
            first: The one whose large calls this one carries; None if it has others carry its own.

        Raises:
            AddressError: The URL is not a valid address of a daemon.
        """
        self.url = url
        self.loop = loop
        self._dialer = Dialer(url, token, tls, self)
        self._calls: dict[int, Call] = {}
        self._deadlines = Deadlines(loop, self._calls, self._on_due)
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._inbox: Inbox[Call | int] = Inbox(loop, self._take)
        large_bytes = LARGE_BYTES if self._dialer.is_local else LARGE_BYTES_TCP
        self._large = LargeCalls(
            lambda: Exchange(loop, url, token, tls, self),
            large_bytes if first is None else math.inf,
            self._dialer.is_local,
        )
        self._first = first
        self.closed = False
        self.losses = 0
        self._handlers: dict[str, OnFrame] = {
            "result": self._on_result,
            "error": self._on_error,
            "reply": self._on_reply,
            "goodbye": self._on_goodbye,
        }

    # Entrances.

    def post(self, item: Call | int) -> None:
        """Starts a call, or cancels the one with the given id, from any thread.

        Raises:
            RuntimeError: The exchange or its event loop is closed, or was made before this process
                was forked.
        """
        if self.closed:
            raise RuntimeError("the client is closed")
        self._inbox.put(item)

    def check_process(self) -> None:
        """Checks that this process made the exchange.

        Raises:
            RuntimeError: This process was forked from the one that did.
        """
        self._inbox.check_process()

    def start(self, *calls: Call) -> None:
        """Sends calls, several in one write, now or once there is a connection."""
        if self.closed:
            for call in calls:
                self._drop(call)
            return
        if (refusal := self._dialer.refusal()) is not None:
            for call in calls:
                self._end(call, copy(refusal))
            return
        connection = self._connection
        calls = self._large.without(calls, connection is not None and not connection.is_full)
        for call in calls:
            self._calls[call.id] = call
            self._deadlines.add(call.deadline_ns, call.id)
        if self._connection is None:
            self._dialer.dial()
            return
        for call in calls:
            self._send(call, self._connection)

    def cancel(self, call_id: int) -> None:
        """Drops a call whose caller no longer waits, and tells the daemon."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            self._abandon(call)
            call.buffers = []  # its future may lead back to it: a cycle would keep the tensors
        else:
            self._large.cancel(call_id)

    async def connect(self, timeout_s: float) -> None:
        """Waits for a connection.

        Raises:
            Unavailable: There was none in time.
            Unauthorized: The daemon refused the token.
            ProtocolError: The daemon speaks another protocol.
        """
        if self._connection is not None:
            return
        if (refusal := self._dialer.refusal()) is not None:
            raise copy(refusal)
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.add(waiter)
        self._dialer.dial()
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except asyncio.TimeoutError:
            raise self._dialer.unreachable() from None
        finally:
            self._waiters.discard(waiter)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def close(self) -> None:
        """Cancels calls in flight and closes the connections."""
        self.closed = True
        self._inbox.drain()
        for call in list(self._calls.values()):
            self._drop(call)
        for waiter in self._waiters:
            waiter.cancel()
        self._dialer.close()
        self._deadlines.close()
        self._large.close()
        for connection in self._connections:
            connection.close()

    async def wait_closed(self) -> None:
        """After `close`, waits until the connections are gone; TLS notifies the other end first."""
        await self._large.wait_closed()
        await wait_closed(self._connections)

    def _take(self, item: Call | int) -> None:
        if isinstance(item, int):
            self.cancel(item)
        else:
            self.start(item)

    # Sending and ending.

    def _send(self, call: Call, connection: Connection) -> None:
        if connection.is_full:
            return  # Its budget is computed when it can be sent, and may be used up by then.
        if call.id not in self._calls:
            return  # One before it has ended unsent, and that has cancelled it.
        now_ns = time.monotonic_ns()
        if call.is_infer:
            left_ns = call.deadline_ns - now_ns
            if left_ns <= 0:
                self._end(call, self._expired(call))
                return
            call.header["budget_ns"] = left_ns - min(connection.overhead.ns, left_ns // 2)
        elif call.due_ns is not None:
            call.header["budget_ns"] = max(1, call.due_ns - now_ns)
        if call.sends >= _MAX_SENDS:
            self._end(call, Unavailable(f"{self.url} was lost {call.sends} times during this call"))
            return
        try:
            frame = call.frame(connection.limits, self.url, connection.lent)
        except InvalidInput as error:
            self._end(call, copy(error))  # its own traceback leads to the call
            return
        call.connection = connection
        call.sent_ns = now_ns
        call.sends += 1
        if len(self._calls) > 1 and call.body_bytes < _FILLS_WRITE_BYTES:
            connection.send_soon(frame)
        else:
            connection.send(frame)

    def _abandon(self, call: Call) -> None:
        connection = call.connection
        if connection is not None:
            if call.is_infer:
                connection.send(wire.encode({"t": "cancel", "id": call.id}))
            if connection.draining:
                self._close_if_done(connection)

    def _end(self, call: Call, answer: Any) -> None:
        """Ends a call, with an answer or an exception."""
        self._calls.pop(call.id, None)
        try:
            if isinstance(answer, BaseException):
                call.future.set_exception(answer)
            else:
                call.future.set_result(answer)
        except (InvalidStateError, asyncio.InvalidStateError):
            pass  # The caller has cancelled it.

    def _drop(self, call: Call) -> None:
        """Ends a call as cancelled, because the exchange is closed."""
        self._calls.pop(call.id, None)
        call.future.cancel()

    def _expired(self, call: Call) -> LaxityError:
        connection, waited = self._connection, ""
        if not call.sends and connection is None:
            if self._first is None or not self._first.is_open:
                return self._dialer.unreachable()
            waited = "the connection for large requests was not open yet"
        elif connection is not None and connection.is_full:
            waited = f"{self.url} has not yet taken what was sent before"
        way_ns = 0 if connection is None else connection.overhead.ns
        return expired(call, self.url, way_ns, self._dialer.reason, waited)

    def _on_due(self, call_id: int) -> None:
        call = self._calls[call_id]
        if call.accept_late and call.connection is not None:
            return
        if call.grace_ns and call.connection is not None:
            call.deadline_ns += call.grace_ns
            call.grace_ns = 0
            self.loop.call_soon(self._deadlines.add, call.deadline_ns, call_id)
            return
        del self._calls[call_id]
        self._abandon(call)
        self._end(call, self._expired(call))

    # Reports from the dialer and its connections.

    def wants_connection(self) -> bool:
        """Whether something waits for a connection."""
        return bool(self._waiters) or (self._connection is None and self._has_unsent())

    def _has_unsent(self) -> bool:
        return any(call.connection is None for call in self._calls.values())

    def on_open(self, connection: Connection) -> None:
        """Sends the calls that waited for a connection."""
        self._connections.add(connection)
        if self.closed:
            connection.close()
            return
        if connection.draining:
            self._close_if_done(connection)
            return
        self._connection = connection
        connection.on_room = self._on_room
        while self._waiters:
            waiter = self._waiters.pop()
            if not waiter.done():
                waiter.set_result(None)
        self._send_waiting()

    def on_refused(self, error: LaxityError) -> None:
        """Ends everything that waits; asking again at once would give the same answer.

        Each gets its own copy of the error: a shared one would accumulate tracebacks, and with them
        the tensors of all callers.
        """
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(copy(error))
        for call in list(self._calls.values()):
            if call.connection is None:
                self._end(call, copy(error))

    def on_lost(self, connection: Connection, error: Exception) -> None:
        """Reconnects for the calls that were in flight on this connection."""
        self.losses += 1
        self._connections.discard(connection)
        if self._connection is connection:
            self._connection = None
        if self.closed:
            return
        self._dialer.reason = str(error)
        now_ns = time.monotonic_ns()
        for call in list(self._calls.values()):
            if call.connection is connection:
                call.connection = None
                if isinstance(error, (Unauthorized, ProtocolError)):
                    self._end(call, copy(error))
                elif call.deadline_ns <= now_ns:
                    self._end(call, self._expired(call))
        if self._has_unsent():
            self._send_waiting()

    def _on_room(self) -> None:
        """Sends calls that waited for room, except those that the round trip alone makes late."""
        connection = self._connection
        if connection is None:
            return
        soonest_ns = time.monotonic_ns() + connection.overhead.ns
        for call in list(self._calls.values()):
            if connection.is_full:
                return
            waits = call.connection is None
            hopeless = call.is_infer and not call.accept_late and call.deadline_ns <= soonest_ns
            if waits and not hopeless:
                self._send(call, connection)

    def _send_waiting(self) -> None:
        connection = self._connection
        if connection is None:
            self._dialer.dial()
            return
        for call in list(self._calls.values()):
            if call.connection is None:
                self._send(call, connection)

    # Messages from the daemon.

    def on_frame(self, connection: Connection, header: wire.Header, body: wire.Body | None) -> None:
        """Handles one message.

        Raises:
            ProtocolError: It does not follow the protocol.
        """
        handler = self._handlers.get(header["t"])
        if handler is not None:  # An unknown type belongs to a later version.
            handler(connection, header, body)
        if connection.draining:
            self._close_if_done(connection)

    def _on_result(
        self, connection: Connection, header: wire.Header, body: wire.Body | None
    ) -> None:
        call = self._answered(connection, header)
        if call is None:
            return
        now_ns = time.monotonic_ns()
        is_large = self._large.note(call, body)
        try:
            result = result_from(header, body)
        except InvalidInput as error:
            self._end(call, ProtocolError(str(error)))
            return
        if not call.is_infer:  # a durable task ran at another time; its outcome is the box's
            self._end(call, result)
            return
        if not is_large:  # how long one takes says nothing of what remains on this connection
            connection.overhead.observe(now_ns - call.sent_ns - result.timing.total_ns)
        # Only this clock knows when the result arrived; the box could only estimate that.
        in_time = now_ns <= call.deadline_ns
        result.outcome = Outcome.COMPLETED if in_time else Outcome.LATE
        self._end(call, result if in_time or call.accept_late else too_late(call, now_ns))

    def _on_reply(
        self, connection: Connection, header: wire.Header, _body: wire.Body | None
    ) -> None:
        call = self._answered(connection, header)
        if call is not None:
            self._end(call, header.get("value"))

    def _on_error(
        self, connection: Connection, header: wire.Header, _body: wire.Body | None
    ) -> None:
        match header:
            case {"id": None | int(), "code": str(code), "message": str(message)}:
                error = error_from_code(code, message, header.get("detail"))
            case _:
                raise ProtocolError(f"an error has id, code and message, not {header!r:.80}")
        if header["id"] is None:
            connection.fail(error)
            return
        call = self._answered(connection, header)
        if call is None:
            return
        if connection.draining and isinstance(error, Unavailable):
            # The call crossed the goodbye on the wire, and was never admitted there.
            call.connection = None
            if time.monotonic_ns() >= call.deadline_ns:
                self._end(call, self._expired(call))
                return
            self._calls[call.id] = call
            self._send_waiting()
            return
        if isinstance(error, DeadlineInfeasible):
            connection.overhead.refused(time.monotonic_ns() - call.sent_ns)
            lost_ms = lost_ns(call, connection.overhead.ns) / 1e6
            try:
                in_callers_terms(error, lambda budget_ms: budget_ms + lost_ms)
            except (TypeError, ValueError, OverflowError) as wrong:
                error = ProtocolError(f"a counter-offer that does not follow the protocol: {wrong}")
        self._end(call, error)

    def _on_goodbye(
        self, connection: Connection, header: wire.Header, _body: wire.Body | None
    ) -> None:
        connection.draining = True
        self.losses += 1
        self._dialer.reason = str(header.get("message") or "it drains")
        if self._connection is connection:
            self._connection = None
            if self._has_unsent():
                self._dialer.dial()

    def _answered(self, connection: Connection, header: wire.Header) -> Call | None:
        call_id = header.get("id")
        if type(call_id) is not int:
            raise ProtocolError(f"an answer has the id of its question, not {call_id!r}")
        call = self._calls.get(call_id)
        if call is None or call.connection is not connection:
            return None  # The call was dropped, or resent elsewhere after a loss.
        del self._calls[call_id]
        self._dialer.worked()
        return call

    def _close_if_done(self, connection: Connection) -> None:
        if not any(call.connection is connection for call in self._calls.values()):
            connection.close()
