"""The scheduler's end of the link to one worker; the protocol is in `workers.link`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import structlog

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.daemon.handover import Handover
from scheduler.daemon.link import LinkListener
from scheduler.daemon.mappings import Mappings
from scheduler.daemon.returns import Returns
from scheduler.daemon.shared_bodies import SharedBodies, lasting
from scheduler.daemon.silence import why_silent
from scheduler.daemon.submission import Submission
from scheduler.shared_pages import opened
from scheduler.wire import ALIGNMENT, Body, FrameReader, Header, alike, encode
from workers.kernel_files import Standing, standing
from workers.link import (
    LINK_LIMITS,
    SOCKET_BYTES,
    card_from,
    offer_from,
    results_from,
)

log = structlog.get_logger()

_RETRY_S = 0.02
_LOOK_S, _SILENT_LOOKS = 5.0, 4
"""How often to check that the worker has sent something, which it does at least every 5 s, and how
many silent checks in a row mean that it hangs. A scheduler that was itself stopped sees one."""

_UCRED = struct.Struct("iII")
"""Process, user and group of a unix socket's peer; see unix(7)."""


class WorkerResults:
    """The memory in which a worker writes large outputs.

    Args:
        where: Where it is.
        tell: Sends the worker a message.
        shared: The memory in which a client of the box may read the outputs, too.

    Raises:
        OSError: It can't be opened.
    """

    def __init__(
        self, where: Header, tell: Callable[[Header], None], shared: SharedBodies | None
    ) -> None:
        """Maps it."""
        self._pages = opened(where, writable=False)
        self._returns = Returns(tell)
        self._shared = shared
        self._number = shared.adopt(self._pages) if shared is not None else 0

    def close(self) -> None:
        """The worker is gone."""
        self._returns.close()
        if self._shared is not None:
            self._shared.abandon(self._number)

    def body(self, start: int, size: int) -> Body:
        """One item's outputs, which the worker leaves alone as long as anything refers to them."""
        return lasting(self._pages, start, size, self._returns.ended)


class WorkerLink(asyncio.BufferedProtocol):
    """A connection to one worker, re-established whenever it is lost.

    Args:
        device_id: The device that the worker owns.
        path: The worker's unix socket.
        listener: Receives the worker's reports.
        shared: The bodies that the worker can read where they are.

    Attributes:
        device_id: The device that the worker owns.
        pid: The worker's process; None while there is none.

    Implements `TargetLink`.
    """

    def __init__(
        self,
        device_id: str,
        path: Path,
        listener: LinkListener,
        shared: SharedBodies | None = None,
    ) -> None:
        """Not connected yet; see `keep_connected`."""
        self.device_id = device_id
        self.pid: int | None = None
        self._path = path
        self._listener = listener
        self._shared = shared
        self._mappings: Mappings | None = None
        self._results: WorkerResults | None = None
        self._reader = FrameReader(LINK_LIMITS)
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._sent: dict[int, list[Body]] = {}
        self._handover = Handover()
        self._ending = ""
        self._silent: float = 0
        self._stood: Standing | None = None
        self._why_silent = ""
        self._look_timer: asyncio.TimerHandle | None = None

    async def keep_connected(self) -> None:
        """Connects, and reconnects whenever the worker is lost, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer = await self._peer()
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            self._reader = FrameReader(LINK_LIMITS)
            self._mappings = None if self._shared is None else self._shared.mappings(self._say)
            self._handover = Handover()
            self._ending = ""
            self._silent = -math.inf  # not counted before its first message: libraries load slowly
            self._lost.clear()
            await loop.create_connection(lambda: self, sock=peer)
            await self._lost.wait()

    async def _peer(self) -> socket.socket:
        with contextlib.ExitStack() as unless_connected:
            peer = unless_connected.enter_context(socket.socket(socket.AF_UNIX))
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            await asyncio.get_running_loop().sock_connect(peer, str(self._path))
            unless_connected.pop_all()
            return peer

    def close(self) -> None:
        """Hangs up."""
        if self._transport is not None:
            self._transport.close()

    # -- sending

    def describe(self) -> dict[str, Any]:
        """The worker's process, and how long its device idles between two batches."""
        return {"pid": self.pid, "handover_ns": self._handover.usual_ns}

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        """Sends a batch; the tensors of its items differ at most in the length of texts."""
        specs, bodies = alike([(submission.specs, submission.body) for submission in batch])
        padding = bytes(-len(bodies[0]) % ALIGNMENT)
        size_bytes = len(bodies) * (len(bodies[0]) + len(padding))
        if size_bytes > LINK_LIMITS.body_bytes:
            most = f"{size_bytes} bytes are more than a batch may have ({LINK_LIMITS.body_bytes})"
            reason = f"{most}: lower max_batch, or limits.body_mb"
            loop = asyncio.get_running_loop()
            loop.call_soon(self._listener.on_failed, dispatch.run_id, reason)
            return
        if not self._sent:
            self._handover.sent(dispatch.run_id)
        self._sent[dispatch.run_id] = bodies  # the worker may read them where they are
        header = {
            "t": "run",
            "id": dispatch.run_id,
            "model": dispatch.model,
            "variant": dispatch.variant,
            "latest_start_ns": dispatch.latest_start_ns,
            "count": len(bodies),
            "in": specs,
        }
        places = self._places(bodies)
        if any(places):
            header["at"] = places
            bodies = [body for body, place in zip(bodies, places, strict=True) if place is None]
        buffers = [part for body in bodies for part in (body, padding)]
        self._write(encode(header, buffers))

    def _places(self, bodies: Sequence[Body]) -> Sequence[tuple[int, int] | None]:
        """Where the worker can read each body; None for those that have to be sent to it."""
        shared, mappings = self._shared, self._mappings
        if shared is None or mappings is None:
            return ()
        places = [shared.place_of(body) for body in bodies]
        return [place if place is not None and mappings.has(place[0]) else None for place in places]

    def _map_results(self, where: Header) -> None:
        try:
            self._results = WorkerResults(where, self._say, self._shared)
        except OSError as error:
            log.warning("worker sends large outputs", device=self.device_id, reason=str(error))
        else:
            self._say({"t": "results_mapped"})

    def cancel(self, run_id: int) -> None:
        """Lets the worker skip a run that it has not begun."""
        self._say({"t": "cancel", "id": run_id})

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        """Has the worker measure an offer again; it then sends the new offer."""
        self._say({"t": "measure", "model": offer.model, "variant": offer.variant})

    def _say(self, header: Header) -> None:
        self._write(encode(header))

    def _write(self, buffers: list[Any]) -> None:
        if self._transport is not None:
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The worker accepted."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        peer = transport.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        self.pid = _UCRED.unpack(credentials)[0]
        self._watch()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._silent < 0:  # a process that is ending may still accept, but says nothing
            log.info("worker connected", device=self.device_id)
        self._silent = 0
        for header, body in self._reader.advance(nbytes):
            self._hear(header, body)

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker is gone."""
        self._transport = self.pid = None
        self._sent.clear()
        if self._results is not None:
            self._results.close()
            self._results = None
        self._lost.set()
        if self._look_timer is not None:
            self._look_timer.cancel()
        is_silent = self._silent >= _SILENT_LOOKS
        # A process that leaves a message unread as it ends resets the connection.
        is_end = exc is None or isinstance(exc, ConnectionError)
        ended = self._ending or ("its process ended" if is_end else str(exc))
        reason = self._why_silent if is_silent else ended
        self._listener.on_lost(self.device_id, f"worker of {self.device_id}: {reason}", is_silent)

    def _watch(self) -> None:
        """Hangs up on a worker that has gone silent; `keep_connected` then reconnects."""
        if self._results is not None:
            self._say({"t": "tidy"})
        self._silent += 1
        stood, self._stood = self._stood, standing(self.pid) if self.pid is not None else None
        if self._silent >= _SILENT_LOOKS and self._transport is not None and self.pid is not None:
            self._why_silent = why_silent(self.pid, stood, self._stood)
            self._transport.abort()
        else:
            self._look_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._watch)

    def _hear(self, header: Header, body: Body | None) -> None:
        match header["t"]:
            case "done":
                run_id, execute_ns = header["id"], header["execute_ns"]
                shared = None if self._results is None else self._results.body
                results = results_from(header, body, len(self._sent.pop(run_id)), shared)
                news_ns = self._handover.done(run_id, execute_ns)
                self._listener.on_done(run_id, results, execute_ns)
                if news_ns is not None:
                    self._listener.on_handover(self.device_id, news_ns)
            case "not_run":
                del self._sent[header["id"]]
                self._listener.on_not_run(header["id"], header["reason"])
            case "results":
                self._map_results(header)
            case "mapped":
                if self._mappings is not None:
                    self._mappings.mapped(header["pages"])
            case "not_mapped":
                if self._mappings is None or not self._mappings.is_gone(header["pages"]):
                    why = header["reason"]
                    log.warning("worker gets large inputs sent", device=self.device_id, reason=why)
            case "offer":
                self._listener.on_offer(self.device_id, offer_from(header))
            case "withdrawn":
                gone = [(model, variant) for model, variant in header["variants"]]
                self._listener.on_withdrawn(self.device_id, gone, "the model's files were replaced")
            case "way":
                base_ns, byte_ns = header["transfer_ns"]
                self._listener.on_way(self.device_id, (base_ns, byte_ns))
            case "catalog":
                cards = [card_from(fields) for fields in header["models"]]
                self._listener.on_catalog(self.device_id, cards, header["problems"])
            case "progress":
                self._listener.on_progress(
                    self.device_id, header["done"], header["total"], header["text"]
                )
            case "ending":
                self._ending = f"its process was ended: {header['reason']}"
            case "telemetry":
                self._listener.on_telemetry(self.device_id, header["reading"])
