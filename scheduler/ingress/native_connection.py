"""One connection of the native door: handles the client's messages and sends the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from scheduler.core.events import BY_CALLER
from scheduler.core.outcomes import Outcome
from scheduler.daemon.neighbours.neighbours import MESSAGES as PEER_MESSAGES
from scheduler.daemon.submission import Answer, Submission
from scheduler.durable.asker import Asker
from scheduler.errors import (
    SHUTTING_DOWN,
    Forbidden,
    InvalidInput,
    LaxityError,
    Overloaded,
    ProtocolError,
    Unauthorized,
    Unavailable,
)
from scheduler.ingress import replies
from scheduler.ingress.caller import Caller
from scheduler.ingress.certificates import DISTRUSTED
from scheduler.ingress.in_flight import InFlight
from scheduler.ingress.inflow import STALL_S, Inflow
from scheduler.ingress.lending import Lending
from scheduler.ingress.model_shelf import MESSAGES as SHELF_MESSAGES
from scheduler.ingress.outflow import Outflow
from scheduler.ingress.questions import answer_to
from scheduler.ingress.request_header import id_of
from scheduler.ingress.restoring import Restored
from scheduler.ingress.showing import MESSAGES as SHOWING_MESSAGES
from scheduler.ingress.showing import Place, Showing
from scheduler.ingress.task_door import TASK_MESSAGES, closed_for_tasks
from scheduler.ingress.turns import Frames, Turns
from scheduler.result import with_restoring
from scheduler.shared_pages import LEAST_BYTES
from scheduler.sockets import DOOR_GIVES_UP_MS, local_host_of, set_up_tcp
from scheduler.tenants import Tenant
from scheduler.wire import VERSION, Body, FrameReader, Header, allocate, encode

if TYPE_CHECKING:
    from scheduler.ingress.native import NativeDoor

HELLO_S = 5.0
"""How long a connection may take to say hello."""

_LIGHT = TASK_MESSAGES | SHOWING_MESSAGES | {"infer", "cancel"}
"""Messages that are cheap to take, because they are answered later; all others are answered at
once."""


_Taken = list[tuple[int, Submission]]
"""The requests of a read, with the ids that the client gave them."""


class NativeConnection(asyncio.BufferedProtocol):
    """One client.

    Attributes:
        caller: Who the client is.
    """

    def __init__(self, door: NativeDoor, is_door: bool = False) -> None:
        self._door = door
        self.caller = Caller(is_door)
        self._driver = door.driver
        self._reader: FrameReader
        self._inflow: Inflow
        self._transport: asyncio.Transport | None = None
        self._turns: Turns | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._in_flight = InFlight(door.intake)
        self._out: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._asker = Asker()
        self._outflow = Outflow(self._say_later)
        self._lending: Lending | None = None
        self._showing: Showing | None = None

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection and starts to wait for its hello."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._turns = Turns(self._transport, _LIGHT, self._take_or_refuse)
        # Only now, after the TLS handshake: the reader's buffer is large, and the number of
        # handshakes in progress has no limit.
        self._reader = FrameReader(self._door.rules.frames, self._allocate)
        self._inflow = Inflow(self._reader, self._door.reading, self._stands_still)
        if (peer := transport.get_extra_info("socket")) is not None:
            set_up_tcp(peer, DOOR_GIVES_UP_MS)
        try:
            self._door.enter(self)
        except Overloaded as error:
            self.refuse(error)
            return
        self._hello_timer = self._loop.call_later(HELLO_S, self._hello_is_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        before = self._reader.header_bytes
        try:
            frames = self._reader.advance(nbytes)
            self._inflow.note(self.caller.tenant)
        except LaxityError as error:
            self.refuse(error)
        else:
            if self._turns is not None:
                self._turns.add(frames, self._reader.header_bytes - before)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the client's requests, as nobody waits for them any more."""
        turns, self._turns, self._transport = self._turns, None, None
        self._inflow.end()
        # Both refer back to this object; without this, the reader's buffer would be freed only by
        # the garbage collector.
        del self._inflow, self._reader
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._door.leave(self)
        self._asker.leave()
        self._outflow.go_on()
        if self._lending is not None:
            self._lending.end()
        if self._showing is not None:
            self._showing.end()
        if self._door.neighbours is not None:
            self._door.neighbours.gone(self)
        if turns is not None:  # spread out: there may be thousands, and each costs a decision
            turns.share.spread(self._door.intake.cancel, self._in_flight.submitted())

    def pause_writing(self) -> None:
        """Stops reading requests, because the client does not read its answers."""
        self._outflow.stop()
        if self._turns is not None:
            self._turns.stop()

    def resume_writing(self) -> None:
        """Reads requests again."""
        self._outflow.go_on()
        if self._turns is not None:
            self._turns.go_on()

    # -- reading

    def _allocate(self, header: Header, size: int) -> memoryview | None:
        """Memory for a large body; None if bodies being received would exceed the box's limit."""
        if not self.caller.is_known:
            raise ProtocolError("the first frame of a connection is hello, without a body")
        if self._door.reading.count + size > self._driver.core.limits.bytes:
            return None
        shared = self._driver.shared
        taken = shared.take(size) if shared is not None else None
        return allocate(header, size) if taken is None else taken

    def _stands_still(self) -> None:
        self.refuse(Unavailable(f"no more of a message arrived for {STALL_S:g} s"))

    def _take_or_refuse(self, frames: Frames) -> None:
        try:
            self._take(frames)
        except LaxityError as error:
            self.refuse(error)
        finally:
            self._door.flush()

    def _take(self, frames: Frames) -> None:
        taken: _Taken = []
        try:
            for header, body in frames:
                try:
                    self._take_one(header, body, taken)
                except ProtocolError:
                    raise
                except LaxityError as error:
                    if not self.caller.is_known:
                        raise
                    self._say(replies.refusal(header.get("id"), error))
                if taken and len(taken[-1][1].body) >= LEAST_BYTES:
                    # Before the next one: each may be a copy, in the order of the signature.
                    large, taken = taken, []
                    self._in_flight.submit(large)
        finally:
            # Requests taken before the stream broke are counted already. They are submitted, and
            # cancelled like any other when the connection is lost.
            if taken:
                self._in_flight.submit(taken)

    def _take_one(self, header: Header, body: Body | None, taken: _Taken) -> None:
        kind = header["t"]
        if not self.caller.is_known:
            self._take_hello(header)
        elif kind == "infer":
            if self._lending is not None and body is not None:
                body = self._lent_body(header, body)
            if "enc" in header:
                self._take_encoded(header, body)
            else:
                taken.append(self._take_infer(header, body))
        elif kind == "cancel":
            self._cancel(id_of(header))
        elif kind in TASK_MESSAGES:
            self._take_task(header, body)
        elif kind in SHOWING_MESSAGES and self._showing is not None:
            self._showing.take(header)
        elif kind in SHELF_MESSAGES and self._door.shelf is not None:
            tenant = self._tenant_of(header)
            tenant.check_scope("peer")
            models = [model for model in self._driver.own_models() if tenant.sees(model)]
            self._door.shelf.take(header, models, self._say_later)
        elif kind in PEER_MESSAGES:
            self._say(replies.reply(header.get("id"), self._take_peer(header)))
        else:
            value = answer_to(header, self._tenant_of(header), self._door)
            self._say(replies.reply(header.get("id"), value))

    def _lent_body(self, header: Header, body: Body) -> Body:
        assert self._lending is not None
        if "at" in header:
            return self._lending.body(header, body, self._door.rules.frames.body_bytes)
        self._lending.note(body)
        return body

    def _cancel(self, client_id: int) -> None:
        restoring = self._in_flight.cancel(client_id)
        if restoring is not None:
            answer = Answer(Outcome.CANCELLED, BY_CALLER, {})
            self._fail(client_id, answer, restoring.taken_ns)

    def _take_task(self, header: Header, body: Body | None) -> None:
        if self._door.tasks is None:
            raise closed_for_tasks()
        if header["t"] == "task":
            self._door.check_open()
        tenant = self._tenant_of(header)
        self._door.tasks.take(header, body, tenant, self._say_later, self._asker)

    def _take_peer(self, header: Header) -> Any:
        if self._door.neighbours is None:
            raise Forbidden("this box has no neighbours: its configuration does not ask for them")
        self._tenant_of(header).check_scope("peer")
        answer = self._door.neighbours.take(header, self)
        self.caller.is_box |= header["t"] == "peer"
        return answer

    def _tenant_of(self, header: Header) -> Tenant:
        return self.caller.tenant_of(header, self._door.rules.access)

    def _take_hello(self, header: Header) -> None:
        assert self._transport is not None
        caller, rules = self.caller, self._door.rules
        caller.greet(header, rules.access, self._transport)
        self._check_trust()
        self._door.welcome(self)
        caller.is_known = True
        shared = self._driver.shared
        if header.get("memory") is True and shared is not None and caller.is_at_home:
            self._lending = Lending(shared, self.tell)
            self._showing = Showing(shared, self.tell)
        if self._turns is not None and (share := self._door.share_of(caller.tenant)) is not None:
            self._turns.share = share
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        limits = {
            "header_bytes": rules.frames.header_bytes,
            "body_bytes": rules.frames.body_bytes,
        }
        welcome = {"t": "welcome", "v": VERSION, "site": rules.site, "limits": limits}
        self._say({**welcome, "encodings": self._door.restorer.undone})
        if self._door.closing:
            self.say_goodbye()

    def look_again(self) -> None:
        """Applies changed access rules: looks up the tenant again, or closes the connection."""
        if not self.caller.is_known or self.caller.is_door:
            return
        try:
            self._check_trust()
            self.caller.look_again(self._door.rules.access)
        except (Unauthorized, Forbidden) as error:
            self.refuse(error)
        except Unavailable as error:  # the way to that box goes by the same authorities
            if self._door.neighbours is not None:
                self._door.neighbours.meet_again(self)
            self.refuse(error)

    def _check_trust(self) -> None:
        """Checks that the authority that may have let the client in counts still.

        Raises:
            Unavailable: It was removed, which lets the client try again with its certificate.
        """
        assert self._transport is not None
        tls, connection = self._door.tls, self._transport.get_extra_info("ssl_object")
        if tls is not None and tls.distrusts(connection):
            raise Unavailable(DISTRUSTED)

    def _take_infer(
        self,
        header: Header,
        body: Body | None,
        restore_ns: int = 0,
        count_out: Callable[[], None] | None = None,
    ) -> tuple[int, Submission]:
        client_id = self._checked_new_id(header)
        taken_ns = self._driver.clock_ns()

        def reply(answer: Answer) -> None:
            self._answer(client_id, answer, taken_ns, restore_ns)

        tenant = self._tenant_of(header)
        submission = self._door.admission.submission(
            header, body, tenant, reply, self.caller.is_box, count_out
        )
        self._in_flight.take(client_id)
        return client_id, submission

    def _checked_new_id(self, header: Header) -> int:
        client_id = id_of(header)
        if client_id in self._in_flight:
            raise InvalidInput(f"id {client_id} is in flight on this connection already")
        self._door.check_open()
        if self.caller.is_box and self._door.neighbours is not None:
            self._door.neighbours.check_room()
        return client_id

    def _take_encoded(self, header: Header, body: Body | None) -> None:
        """Takes a request with encoded inputs, and submits it once they are decoded.

        Until then it counts as in flight like any other.
        """
        client_id = self._checked_new_id(header)
        admission, tenant = self._door.admission, self._tenant_of(header)
        admission.check(header, tenant)
        taken_ns = self._driver.clock_ns()

        def ended(restored: Restored | LaxityError) -> None:
            if self._transport is None or not self._in_flight.restored(client_id, restoring):
                count_out()
                return  # the client is gone, or has cancelled
            try:
                if isinstance(restored, LaxityError):
                    raise restored
                self._in_flight.submit([self._take_infer(*restored, count_out)])
            except LaxityError as error:
                count_out()
                self._say(replies.refusal(client_id, error))
            finally:
                self._door.flush()

        free_bytes = self._driver.core.limits.bytes - self._door.reading.count
        count_in = partial(admission.count_in, tenant)
        count_out = self._door.restorer.begin(header, body, free_bytes, count_in, ended)
        restoring = self._in_flight.restore(client_id, taken_ns)

    # -- writing

    def _answer(self, client_id: int, answer: Answer, taken_ns: int, restore_ns: int) -> None:
        self._in_flight.end(client_id)
        if answer.outputs is None or answer.offer is None:
            self._fail(client_id, answer, taken_ns - restore_ns)
            return
        header = answer.header()
        header["t"], header["id"] = "result", client_id
        if self.caller.is_box and answer.digest:
            header["files"] = answer.digest
        if restore_ns:
            header["restore_ns"] = restore_ns
            header["timing"] = with_restoring(answer.timing_ns, restore_ns)
        body = answer.outputs[1]
        place = self._place(body)
        self._write(encode(header, (body,)) if place is None else encode({**header, "at": place}))

    def _place(self, body: Body) -> Place | None:
        """Where the client copies a result from; None if it is sent, as are the box's last ones."""
        if self._showing is None or self._door.closing:
            return None
        return self._showing.place(body)

    def _fail(self, client_id: int, answer: Answer, taken_ns: int) -> None:
        said = replies.failure(client_id, answer.outcome.value, answer.reason, answer.detail)
        if self.caller.is_box:
            said["had_ns"] = self._driver.clock_ns() - taken_ns
        self._say(said)

    @property
    def held(self) -> int:
        """How many requests of this connection have not ended."""
        return len(self._in_flight)

    @property
    def shown_bytes(self) -> int:
        """The size of the results that the client has not copied yet."""
        return 0 if self._showing is None else self._showing.bytes

    @property
    def local_host(self) -> str | None:
        """This box's address as the client reached it; None for a unix socket."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return local_host_of(name)

    def tell(self, header: Header) -> None:
        """Sends a message that answers nothing, outside of any event."""
        self._say_later(header, ())

    def _say(self, header: Header) -> None:
        self._write(encode(header))

    def _say_later(
        self, header: Header, body: Sequence[Any], left: Callable[[], None] | None = None
    ) -> None:
        """Sends a message outside of any event, so flushes by itself."""
        if left is not None:
            self._outflow.send(header, body, left)
            return
        self._write(encode(header, body))
        self._door.flush()

    def _write(self, buffers: list[Any]) -> None:
        if not self._out:
            self._door.unsent.append(self)
        self._out.extend(buffers)

    def flush(self) -> None:
        """Sends the messages since the last flush, in one system call."""
        if self._lending is not None:
            free = self._lending.returns.message()
            self._out.extend(encode(free) if free is not None else ())
        out, self._out = self._out, []
        if self._transport is None or not out:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def say_goodbye(self) -> None:
        """Tells the client, if it has said hello, that the box takes no more requests."""
        if not self.caller.is_known:
            return
        self._say({"t": "goodbye", "message": SHUTTING_DOWN})

    def close(self) -> None:
        """Closes once all written data is sent."""
        self._door.flush()  # which forgets this connection too
        if self._transport is not None:
            self._transport.close()

    def refuse(self, error: LaxityError) -> None:
        """Sends an error and closes the connection."""
        self._say(replies.refusal(None, error))
        self.close()

    def _hello_is_late(self) -> None:
        if not self.caller.is_known:
            # If the box itself stalled, the hello may have arrived by now. `Unavailable` lets the
            # client try again.
            self.refuse(Unavailable(f"no hello came within {HELLO_S:g} s"))
