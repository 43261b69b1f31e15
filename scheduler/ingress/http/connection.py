"""One HTTP/1.1 connection: reads requests and writes answers, in order and within limits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import httptools
import structlog

from scheduler.errors import InvalidInput, LaxityError
from scheduler.ingress.http.limits import LEAST_RATE
from scheduler.ingress.http.messages import Request, as_refusal, written
from scheduler.ingress.http.reading import Incoming
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.outcomes import TooSlow, refusal_of

if TYPE_CHECKING:
    from scheduler.ingress.http.door import HttpDoor

_LINGER_S = 2.0
"""How long to discard what a refused client still sends, so that it can read the answer."""

log = structlog.get_logger()


def log_failure(error: BaseException) -> None:
    """Logs a mistake of the door's own."""
    log.error("request failed in the door", error=repr(error), exc_info=error)


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection.

    Args:
        door: The door, which all connections share.

    Attributes:
        parser: The parser of the request being received.
    """

    def __init__(self, door: HttpDoor) -> None:
        """Waits for `connection_made`."""
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._turns: deque[Turn] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._answers_last = False
        self._paused = False
        self._incoming = Incoming(self, door)
        self.parser = httptools.HttpRequestParser(self._incoming)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection, or aborts it if there is no room."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._incoming.caller = self._door.caller_of(transport)
        if self._is_distrusted() or not self._door.enter(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes; a large body is read in place."""
        return self._incoming.unfilled() or self._door.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        incoming = self._incoming
        if self._closing:
            return
        if incoming.unfilled() is not None:
            if incoming.filled(nbytes):
                self.parser = httptools.HttpRequestParser(incoming)
        else:
            self._feed(self._door.scratch[:nbytes])
        if incoming.refusal is not None and not self._closing:
            self._refuse_rest(incoming.refusal)
        self._watch()

    def eof_received(self) -> bool:
        """Closes the connection; half-closed connections are not kept."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the requests that nobody waits for any more."""
        self._transport = None
        self._closing = True
        self._stop_timer()
        self._incoming.drop()
        self._door.leave(self)
        turns, self._turns = self._turns, deque()
        for turn in turns:
            turn.release()
            if turn.on_gone is not None:
                turn.on_gone()

    def pause_writing(self) -> None:
        """Stops reading requests, because the client reads its answers too slowly."""
        self._paused = True
        self._read(False)
        self._expect_reading()

    def resume_writing(self) -> None:
        """Reads requests again."""
        self._paused = False
        self._stop_timer()
        self._read(True)
        self._watch()

    # -- requests

    def take(self, request: Request) -> None:
        """Serves a complete request."""
        turn = Turn(self.flush, request, self._door.held)
        self._turns.append(turn)
        if len(self._turns) >= self._door.limits.pipelined:
            self._read(False)
        self._door.serve(turn)

    def refuse(self, request: Request, error: LaxityError) -> None:
        """Answers a complete request that was refused for its headers."""
        turn = Turn(self.flush, request, self._door.held)
        self._turns.append(turn)
        turn.answer(as_refusal(refusal_of(error, self._door.compat)))

    def go_on(self) -> None:
        """Tells a client that expects 100-continue to send its body, unless answers are pending."""
        if self._transport is not None and not self._turns:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def flush(self) -> None:
        """Writes the answers that are ready and next in order."""
        out: list[Any] = []
        keep = True
        while self._turns and keep and (response := self._turns[0].response) is not None:
            turn = self._turns.popleft()
            request = turn.request
            turn.release()
            over = self._door.closing and not self._turns and not self._incoming.busy
            keep = request.keep_alive and not over and not self._answers_last
            out += written(response, keep, request.is_head)
        if not out or self._transport is None:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)
        if self._paused:
            self._expect_reading()
        if not keep:
            self._end()
        elif not self._turns:
            if not self._paused:
                self._read(True)
            self._watch()

    def look_again(self) -> None:
        """Closes, if other authorities count by now; a request in flight is answered before."""
        if self._is_distrusted():
            self._answers_last = True
            self.say_goodbye()

    def say_goodbye(self) -> None:
        """Closes if no request is in flight; otherwise the last answer closes."""
        if not self._turns and not self._incoming.busy:
            self.close()

    def close(self) -> None:
        """Closes once all written data is sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- inside

    def _is_distrusted(self) -> bool:
        tls = self._door.tls
        if tls is None or self._transport is None:
            return False
        return tls.distrusts(self._transport.get_extra_info("ssl_object"))

    def _feed(self, data: memoryview) -> None:
        incoming = self._incoming
        before = incoming.busy, incoming.begun
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Ignored, as RFC 9110, section 7.8 allows: what follows is still HTTP/1.1.
            self.parser = httptools.HttpRequestParser(incoming)
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)
        except httptools.HttpParserCallbackError as error:
            incoming.refusal = InvalidInput("the request can't be parsed")
            log_failure(error.__context__ or error)
        except httptools.HttpParserError as error:
            if incoming.refusal is None:
                incoming.refusal = InvalidInput(f"not HTTP/1.1: {error}")
        else:
            incoming.count_head(len(data), *before)

    def _refuse_rest(self, error: LaxityError) -> None:
        """Refuses the current request, discards what still arrives, and closes."""
        self._incoming.refusal = error  # so that a partial body is not taken as the request's
        turn = Turn(self.flush, self._incoming.as_request(keep_alive=False), self._door.held)
        self._closing = True
        self._incoming.drop()
        self._stop_timer()
        self._turns.append(turn)
        turn.answer(as_refusal(refusal_of(error, self._door.compat)))

    def _end(self) -> None:
        """Closes; after a refusal, only once the client has had time to read the answer."""
        if not self._closing or self._transport is None:
            self.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._loop.call_later(_LINGER_S, self.abort)

    def _read(self, on: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def _watch(self) -> None:
        """Bounds how long the client may take to finish its request, or to send another."""
        if self._closing or self._paused:
            return
        if self._incoming.busy:
            if self._turns or self._incoming.is_admitted:
                self._door.busy(self)
            else:
                self._door.idle(self)  # not admitted: it makes room like one that sends nothing
            if len(self._turns) >= self._door.limits.pipelined:
                self._stop_timer()  # the rest of the request is not read yet
            elif self._timer is None:
                self._expect_request()
            return
        self._stop_timer()
        if self._turns:
            self._door.busy(self)
        else:
            self._door.idle(self)

    def _expect_request(self) -> None:
        """Refuses the current request unless it arrives in the time that its size allows."""
        incoming, limits = self._incoming, self._door.limits
        number, began_s = incoming.begun, self._loop.time()

        def look() -> None:
            left_s = began_s + limits.patience_s(incoming.size) - self._loop.time()
            if incoming.begun > number:
                self._expect_request()  # by now it is the next one
            elif left_s > 0:
                self._timer = self._loop.call_later(left_s, look)
            else:
                self._timer = None
                self._refuse_rest(TooSlow("the request did not arrive in time"))

        look()

    def _expect_reading(self) -> None:
        """Aborts the connection unless the client reads its answers at the least rate."""
        self._stop_timer()
        if self._transport is None:
            return
        limits, unread = self._door.limits, self._transport.get_write_buffer_size()

        def look() -> None:
            left = self._transport.get_write_buffer_size() if self._transport is not None else 0
            if unread - left < limits.request_s * LEAST_RATE:
                self.abort()
            else:
                self._expect_reading()

        self._timer = self._loop.call_later(limits.request_s, look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
