"""The link to another box: it sends single requests by the native protocol, and gets reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import structlog

from scheduler import wire
from scheduler.address import parse_address
from scheduler.backoff import Backoff
from scheduler.client.asking import Reply
from scheduler.client.connection import Connection, OnFrame, OnLost, connect
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.outcomes import REFUSALS
from scheduler.daemon.asyncio_tasks import keep_task
from scheduler.daemon.link import LinkListener, Ran
from scheduler.daemon.neighbours.forwarding import LEAST_HOLD_NS, forwarded, hold_ns
from scheduler.daemon.neighbours.large_way import LargeWay
from scheduler.daemon.neighbours.members import SUSPECT_NS
from scheduler.daemon.neighbours.peer_standing import PeerStanding
from scheduler.daemon.neighbours.pings import Pings
from scheduler.daemon.neighbours.refusals import is_refusal, said
from scheduler.daemon.neighbours.report import Row, name_from, rows_from
from scheduler.daemon.neighbours.sent import Sent
from scheduler.daemon.outputs import check_outputs
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.shrinking import shrunk_note
from scheduler.errors import InvalidInput, LaxityError, ProtocolError

if TYPE_CHECKING:
    from scheduler.daemon.neighbours.neighbours import Neighbours

CONNECT_S = 3.0
"""Timeout until the other box has introduced itself."""

FIRST_RETRY_NS, LONGEST_RETRY_NS = 100_000_000, 2_000_000_000
"""First and last ceiling of the backoff between attempts to reach a box."""

SILENT_NS = 2_000_000_000
"""A connection silent for this long is abandoned: a broken one may never report an error."""

log = structlog.get_logger()


class PeerLink:
    """A connection to another box's native door, re-established whenever it is lost.

    Large messages get a second connection, opened when the first of them is sent.

    Args:
        box: The name of the other box; the target's id.
        neighbours: The boxes of the site, and this one.
        listener: Receives the reports of the link.
        clock_ns: The monotonic clock.

    Implements `TargetLink`.
    """

    def __init__(
        self,
        box: str,
        neighbours: Neighbours,
        listener: LinkListener,
        clock_ns: Callable[[], int],
    ) -> None:
        """Not connected yet; see `keep_connected`."""
        self._box = box
        self._neighbours = neighbours
        self._listener = listener
        self._clock_ns = clock_ns
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._reply = Reply()
        self._broken = asyncio.Event()
        self._reason = "not reached yet"
        self._refusal = ""
        self._meter = WayMeter(clock_ns=clock_ns)
        self._standing = PeerStanding(box, neighbours, self._meter, listener, self._lose)
        self._known = self._standing.known
        self._backoff = Backoff(FIRST_RETRY_NS, LONGEST_RETRY_NS)
        self._sent: dict[int, Sent] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._large = LargeWay(self._meter, self._dial, self._on_large_frame, self._on_large_lost)
        self._pings = Pings(self._meter, clock_ns)
        self._reported_ns = self._heard_ns = clock_ns()
        self.forwarded = self.refused = 0

    # -- the connection

    async def keep_connected(self) -> None:
        """Connects, and reconnects whenever the box is lost, until cancelled."""
        try:
            while True:
                try:
                    await self._meet()
                    self._refusal = ""
                    self._backoff.reset()
                    await self._broken.wait()
                except (LaxityError, OSError, ValueError, asyncio.TimeoutError) as error:
                    self._note_not_met(error)
                self._hang_up()
                await asyncio.sleep(self._backoff.next_ns() / 1e9)
        finally:
            self._hang_up()

    def _note_not_met(self, error: Exception) -> None:
        """Says why the box can't be used; a persistent refusal is logged once."""
        self._reason = said(error)
        if is_refusal(error) and self._reason != self._refusal:
            self._refusal = self._reason
            log.warning("another box can't be used", box=self._box, reason=self._reason)
        self._listener.on_progress(self._box, 0, 0, f"box {self._box}: {self._reason}")

    async def _meet(self) -> None:
        self._broken.clear()
        self._reply = Reply()
        await asyncio.wait_for(self._introduce(), CONNECT_S)

    async def _dial(self, on_frame: OnFrame, on_lost: OnLost) -> Connection:
        """Connects and sends this box's introduction; the answer is the first frame."""
        address = self._neighbours.address_of(self._box)
        if address is None:
            raise ConnectionError("it has left")
        connection = await connect(
            parse_address(address), self._neighbours.token, on_frame, on_lost
        )
        connection.send(wire.encode(self._neighbours.introduction(connection)))
        return connection

    async def _introduce(self) -> None:
        connection = self._connection = await self._dial(self._on_frame, self._on_lost)
        self._standing.begin(connection)
        self._heard_ns = self._clock_ns()
        self._pings.begin()
        await self._reply.answer()

    def hang_up(self, why: str) -> None:
        """Ends the connection and makes another one; what is in flight goes elsewhere."""
        self._reason = why
        self._broken.set()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fail(ConnectionAbortedError("hung up"))
        self._large.close()
        self._reply.give_up()
        self._lose(self._reason)

    def _on_lost(self, connection: Connection, error: Exception) -> None:
        if connection is self._connection:
            self._reason = str(error) or type(error).__name__
            self._reply.fail(error)
            self._lose(self._reason)
            self._broken.set()

    def _on_large_lost(self, connection: Connection, reason: str) -> None:
        """Returns the requests of the second connection to the core; the box is still there."""
        lost = [run_id for run_id, sent in self._sent.items() if sent.connection is connection]
        for run_id in lost:
            if self._sent.pop(run_id, None) is not None:
                self._listener.on_not_run(run_id, f"{self._box}: {reason}")

    def _lose(self, reason: str) -> None:
        """Reports the box as lost; its requests go elsewhere, so it need not run them."""
        for run_id in self._sent:
            self.cancel(run_id)
        self._sent.clear()
        self._standing.lose(reason)

    def close(self) -> None:
        """Hangs up."""
        if self._connection is not None:
            self._connection.close()

    def leave(self) -> None:
        """Tells the other box that this one is leaving."""
        if self._connection is not None:
            self._connection.send(wire.encode({"t": "leave", "id": -2}))

    def check(self, now_ns: int) -> None:
        """Notices silence, and pings the other box; must be called a few times a second."""
        if self._connection is None:
            return
        if self._standing.is_up and now_ns - self._reported_ns > SUSPECT_NS:
            self._lose(f"no report came for {SUSPECT_NS / 1e9:g} s")
        if now_ns - self._heard_ns > SILENT_NS:
            self._reason = f"nothing was heard for {SILENT_NS / 1e9:g} s"
            self._broken.set()
        else:
            self._pings.small(self._connection, self._under_way)

    @property
    def _under_way(self) -> int:
        """The bytes of requests and pings in flight."""
        return sum([sent.sent_size for sent in self._sent.values()]) + self._pings.under_way

    # -- sending

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        """Forwards a request with its remaining budget, less the way back."""
        (submission,) = batch
        connection, run_id = self._connection, dispatch.run_id
        size = len(submission.body)
        now_ns = self._clock_ns()
        left_ns = max(1, submission.deadline_ns - now_ns)
        sent = self._sent[run_id] = Sent(dispatch, now_ns, left_ns, size, size)
        if connection is None or size > connection.limits.body_bytes:
            self._loop.call_soon(self._keep_large, run_id, submission)
            return
        self._known.sent(sent.what, submission.budget_ns or left_ns)
        if dispatch.form:
            sent.shrinking = self._standing.shrinkings[dispatch.model]
        if sent.shrinking is not None or self._opening_for(sent) is not None:
            keep_task(self._prepare(sent, submission), self._preparing)
        else:
            self._forward(connection, sent, submission)

    async def _prepare(self, sent: Sent, submission: Submission) -> None:
        """Shrinks a request's inputs or opens its connection, or both, then forwards it.

        Inputs that don't fit go unchanged.
        """
        run_id, connection = sent.dispatch.run_id, self._connection
        if sent.shrinking is not None:
            sent.shrunk = await sent.shrinking.shrunk(sent.dispatch.form, [submission])
        if (opening := self._opening_for(sent)) is not None:
            began_ns = self._clock_ns()
            await asyncio.wait([opening])
            sent.at_ns += self._clock_ns() - began_ns
        if self._sent.get(run_id) is not sent or connection is None:
            return  # it was withdrawn meanwhile
        if sent.cancelled:
            del self._sent[run_id]
            self._listener.on_not_run(run_id, f"{self._box}: nobody waits any more")
            return
        self._forward(connection, sent, submission)

    def _opening_for(self, sent: Sent) -> asyncio.Task[None] | None:
        return self._large.opening_for(sent.dispatch.model, self._largest(sent))

    def _largest(self, sent: Sent) -> int:
        """The size of a request or of its answer."""
        return max(sent.sent_size, self._known.answer_bytes(sent.dispatch.model))

    def _forward(self, connection: Connection, sent: Sent, submission: Submission) -> None:
        model = sent.dispatch.model
        header, body = forwarded(sent.dispatch, submission, sent.shrunk)
        sent.sent_size = sum(map(len, body))
        until_ns = max(1, submission.deadline_ns - self._clock_ns())
        way_ns = self._meter.both_ways_ns(sent.sent_size + self._known.answer_bytes(model))
        left_ns = until_ns - way_ns
        if submission.accept_late:  # but it has to start there before its budget ends
            left_ns = max(left_ns, (until_ns + 1) // 2)
        if left_ns <= 0:
            why = f"no time is left for the way to {self._box}"
            self._loop.call_soon(self._keep_here, sent.dispatch.run_id, why, LEAST_HOLD_NS)
            return
        sent.budget_ns = left_ns - min(self._meter.jitter_ns, left_ns // 2)
        header["budget_ns"] = sent.budget_ns
        frame = wire.encode(header, body)
        if wire.header_bytes(frame, sent.sent_size) > connection.limits.header_bytes:
            self._loop.call_soon(self._keep_large, sent.dispatch.run_id, submission)
            return
        self.forwarded += 1
        sent.connection = self._large.connection_for(model, self._largest(sent)) or connection
        sent.connection.send_soon(frame)

    def cancel(self, run_id: int) -> None:
        """Asks the other box to drop a request; its answer is still awaited."""
        if self._connection is not None and run_id in self._sent:
            sent = self._sent[run_id]
            sent.cancelled = True
            way = sent.connection or self._connection
            way.send_soon(wire.encode({"t": "cancel", "id": run_id}))

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        """Measures the way with at most a request's size; the box reports the rest itself."""
        if self._connection is not None and not self._meter.is_bulk(self._under_way):
            self._pings.large(self._connection, len(refused.body))

    def describe(self) -> dict[str, Any]:
        """The state of the box and of the way to it."""
        return {
            "peer": True,
            "forwarded": self.forwarded,
            "refused": self.refused,
            "age_s": round((self._clock_ns() - self._reported_ns) / 1e9, 3),
            "way": self._meter.describe(),
            "shrunk": self._standing.shrinkings.describe(),
            "reported": self._known.describe(),
            "too_large": self._known.too_large.describe(),
        }

    # -- incoming messages

    def _on_frame(
        self, connection: Connection, header: wire.Header, body: wire.Body | None
    ) -> None:
        if connection is self._connection:
            self._hear(header, body)

    def _on_large_frame(
        self, connection: Connection, header: wire.Header, body: wire.Body | None
    ) -> None:
        sent = self._sent.get(header["id"])
        if sent is not None and sent.connection is connection:
            self._hear(header, body)

    def _hear(self, header: wire.Header, body: wire.Body | None) -> None:
        self._heard_ns = self._clock_ns()
        try:
            self._take(header, body)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(
                f"box {self._box} sent an invalid message: {error!r:.200}"
            ) from None

    def _take(self, header: wire.Header, body: wire.Body | None) -> None:
        match header["t"]:
            case "result":
                self._on_result(header, body)
            case "error":
                self._on_error(header)
            case "report":
                self._on_report(rows_from(header), header.get("members", ()))
            case "catalog":
                self._standing.learn(header["models"])
            case "reply":
                self._on_reply(header)
            case "goodbye":
                self._standing.leave()

    def _on_reply(self, header: wire.Header) -> None:
        if self._reply.awaits(header):
            value = header["value"]
            self._neighbours.met(self._box, value)
            self._standing.learn(value["models"])
            self._reply.take(header)
        else:
            self._pings.answered(header["id"])

    def _on_report(self, rows: list[Row], members: Any) -> None:
        self._neighbours.heard(self._box, members)
        self._reported_ns = self._clock_ns()
        self._standing.report(rows, {sent.what for sent in self._sent.values()})

    # -- ends of requests

    def _on_result(self, header: wire.Header, body: wire.Body | None) -> None:
        run_id = header["id"]
        sent = self._sent.get(run_id)
        if sent is None:
            return  # it was withdrawn meanwhile, and has ended elsewhere
        _, _, execute_ns, total_ns = map(index, header["timing"])
        self._known.learned = True
        outputs = body if body is not None else memoryview(b"")
        self._large.note(sent.dispatch.model, len(outputs))
        self._known.answered(sent.dispatch.model, len(outputs))
        took_ns = sent.took_ns(self._clock_ns())
        notes = dict(header.get("notes", ()))
        if sent.shrinking is not None and sent.shrunk is not None:
            work_ns = sent.shrunk.took_ns + index(header.get("restore_ns", 0))
            sent.shrinking.learn(sent.dispatch.form, sent.size, sent.sent_size, work_ns)
            notes.update(shrunk_note(sent.dispatch))
        # What the box says of itself may be anything.
        execute_ns, total_ns = (max(0, min(ns, took_ns)) for ns in (execute_ns, total_ns))
        way_ns, sent_ns = took_ns - total_ns, self._clock_ns() - took_ns
        self._meter.carried(sent.sent_size, len(outputs), way_ns, sent_ns)
        device, runtime = map(name_from, (header["target"], header["runtime"]))
        ran = Ran(device, runtime, index(header["batch"]), str(header.get("files", "")))
        specs, card = header["out"], self._neighbours.card(sent.dispatch.model)
        del self._sent[run_id]  # only now: if the message was malformed, the run goes elsewhere
        try:
            check_outputs(specs, len(outputs), card.signature.outputs if card else ())
        except InvalidInput as error:
            self._listener.on_failed(run_id, f"{self._box} gave a wrong answer: {error}")
        else:
            self._listener.on_done(run_id, [(specs, outputs)], execute_ns, notes, ran)

    def _on_error(self, header: wire.Header) -> None:
        if self._reply.awaits(header):
            self._reply.take(header)
            return
        run_id, code, message = header["id"], header["code"], str(header["message"])
        if run_id in self._sent and "had_ns" in header:
            self._learn_way(self._sent[run_id], index(header["had_ns"]))
        if code in REFUSALS or (
            run_id in self._sent and self._sent[run_id].is_over_early(code, self._clock_ns())
        ):
            self._refuse(run_id, message, header.get("detail"))
        elif self._sent.pop(run_id, None) is None:
            return
        elif code in ("cancelled", "expired"):
            self._listener.on_not_run(run_id, f"{self._box}: {message}")
        else:
            self._listener.on_done(run_id, [f"{self._box}: {message}"], 0)

    def _learn_way(self, sent: Sent, had_ns: int) -> None:
        """Measures the way there by a request that has no result.

        Without this, a way that is too slow for some requests would cost each of them its deadline.
        """
        if sent.connection is not None:
            now_ns = self._clock_ns()
            took_ns = sent.took_ns(now_ns)
            way_ns = took_ns - max(0, min(had_ns, took_ns))
            self._meter.carried(sent.sent_size, 0, way_ns, now_ns - took_ns)

    def _keep_large(self, run_id: int, submission: Submission) -> None:
        """Handles a request too large for the box: none like it is sent there again."""
        size = len(submission.body)
        if self._known.too_large.add(submission.kind):
            model = submission.kind.model
            log.info("requests too large for another box", box=self._box, model=model, bytes=size)
        self._keep_here(
            run_id, f"{size} bytes, or their description, are more than {self._box} takes"
        )

    def _keep_here(self, run_id: int, why: str, hold_ns: int = 0) -> None:
        """Gives a request that is not sent back to the core, which then knows why."""
        if self._sent.pop(run_id, None) is not None:
            self._standing.tell(hold_ns)
            self._listener.on_not_run(run_id, why)

    def _refuse(self, run_id: int, why: str, detail: Any) -> None:
        """Handles a refusal: closes the target for a moment, and requeues the request."""
        sent = self._sent.get(run_id)
        if sent is None:
            return
        rest_ns = hold_ns(sent.budget_ns, detail)
        del self._sent[run_id]
        self.refused += 1
        if self._standing.is_up:
            self._standing.tell(rest_ns)
        self._listener.on_not_run(run_id, f"{self._box} refused: {why}")
