"""The worker's end of its link to the scheduler; the messages are in `workers.link`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from scheduler.shared_pages import SharedPages, opened
from scheduler.wire import (
    ALIGNMENT,
    ANSWER_BYTES,
    Body,
    FrameReader,
    Header,
    Tensors,
    body_bytes,
    encode,
    pack_tensors,
)
from workers.link import LINK_LIMITS, SOCKET_BYTES, unpack_items
from workers.result_memory import ResultMemory


class Host(Protocol):
    """The owner of the device: runs batches, item by item where one is bad."""

    def run(self, model: str, variant: str, items: list[Tensors]) -> Sequence[Any]:
        """The outputs of each item, or the exception it caused.

        Raises:
            KeyError: The variant is not served, or no longer.
        """
        ...


Measure = Callable[[str, str], None]
"""Called with a model's and a variant's name; returns at once."""


def ignore_measure(model: str, variant: str) -> None:
    """A `Measure` for hosts that measure nothing."""


def listener_at(path: Path, backlog: int = 1) -> socket.socket:
    """A unix socket that listens for processes of this user; a stale file is replaced.

    Raises:
        OSError: The path can't be bound.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


class LinkServer:
    """The worker's end: serves one scheduler at a time, and runs batches in order of arrival.

    One blocking thread serves, because a thread switch would cost more than a small inference;
    `say` may be called from other threads.

    Args:
        path: The unix socket to listen on; a stale one is replaced.
        host: Runs the batches.
        measure: Called with the model and variant to measure again.
        maps: Whether bodies may be read from the scheduler's memory instead of being sent.
    """

    def __init__(
        self, path: Path, host: Host, measure: Measure = ignore_measure, maps: bool = True
    ) -> None:
        """Start listening, so that a scheduler can connect."""
        self._host = host
        self._measure = measure
        self._maps = maps
        self._lock = threading.RLock()
        # Held from the start of a batch until its answer has been sent.
        self._turn = threading.Lock()
        self._said: dict[str, list[Any]] = {}
        self._peer: socket.socket | None = None
        self._reader = FrameReader(LINK_LIMITS)
        self._pages: dict[int, SharedPages] = {}
        self._results_in = ResultMemory(self._say_once)
        self._waiting: deque[tuple[Header, Body | None]] = deque()
        self._cancelled: set[int] = set()
        self._listener = listener_at(path)

    def say(self, key: str, header: Header) -> None:
        """Sends a message to the scheduler, and the latest one per key to every later scheduler."""
        with self._lock:
            self._said[key] = encode(header)
            if self._peer is not None:
                self._send(self._said[key])

    def unsay(self, keys: Iterable[str], header: Header) -> None:
        """Sends later schedulers no message of these keys, and the present one this one."""
        with self._lock:
            for key in keys:
                self._said.pop(key, None)
            self._send(encode(header))

    def between_runs(self) -> AbstractContextManager[Any]:
        """A context in which no batch runs, and every answer of earlier ones has been sent."""
        return self._turn

    def serve_forever(self) -> None:
        """Serves one scheduler after another."""
        while True:
            if self._peer is None:
                self._accept()
            self._receive(block=not self._waiting)
            with self._lock:
                waiting = self._waiting.popleft() if self._waiting else None
            if waiting is not None:
                with self._turn:
                    self._run(*waiting)

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        with self._lock:
            self._peer = peer
            self._results_in = ResultMemory(self._say_once)
            for said in self._said.values():
                self._send(said)

    def _receive(self, block: bool) -> None:
        # Another thread that sends may notice meanwhile that this scheduler is gone.
        peer, reader = self._peer, self._reader
        if peer is None:
            return
        try:
            flags = 0 if block else socket.MSG_DONTWAIT
            count = peer.recv_into(reader.get_buffer(), 0, flags)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        with self._lock:
            if self._peer is not peer:
                return
            if count:
                self._take(reader.advance(count))
            else:
                self._hang_up()

    def _take(self, frames: Iterable[tuple[Header, Body | None]]) -> None:
        for header, body in frames:
            if header["t"] == "run":
                if "at" in header:  # now: the pages may be forgotten before it runs
                    header["at"] = self._shared_bodies(header)
                self._waiting.append((header, body))
            elif header["t"] == "map":
                self._map(header["pages"], header)
            elif header["t"] == "forget":
                self._pages.pop(header["pages"], None)
            elif header["t"] == "results_mapped":
                self._results_in.mapped()
            elif header["t"] == "free":
                self._results_in.free(header["at"])
            elif header["t"] == "tidy":
                self._results_in.tidy()
            elif header["t"] == "cancel":
                # A cancel follows its run, so a run that is not waiting has already run.
                if any(waiting["id"] == header["id"] for waiting, _ in self._waiting):
                    self._cancelled.add(header["id"])
            else:
                self._measure(header["model"], header["variant"])

    def _map(self, number: int, where: Header) -> None:
        if not self._maps:
            return
        try:
            self._pages[number] = opened(where, writable=False)
        except OSError as error:
            self._send(encode({"t": "not_mapped", "pages": number, "reason": str(error)}))
        else:
            self._send(encode({"t": "mapped", "pages": number}))

    def _shared_bodies(self, header: Header) -> list[Body | None]:
        size = body_bytes(header["in"])
        return [
            None if place is None else self._pages[place[0]].block(place[1], size).data
            for place in header["at"]
        ]

    def _hang_up(self) -> None:
        """Forgets a scheduler that is gone, with the runs it requested."""
        with self._lock:
            if self._peer is not None:
                self._peer.close()
            self._peer = None
            self._pages = {}
            self._reader = FrameReader(LINK_LIMITS)
            self._waiting.clear()
            self._cancelled.clear()

    def _say_once(self, header: Header) -> None:
        self._send(encode(header))

    def _send(self, buffers: list[Any]) -> None:
        with self._lock:
            if self._peer is None:
                return
            try:
                for buffer in buffers:
                    self._peer.sendall(buffer)
            except OSError:
                self._hang_up()

    def _run(self, header: Header, body: Body | None) -> None:
        run_id, started_ns = header["id"], time.monotonic_ns()
        if run_id in self._cancelled:
            self._cancelled.discard(run_id)
            reason = "cancelled before it began"
        elif started_ns > header["latest_start_ns"]:
            reason = "too late to begin"
        else:
            try:
                results = self._results(header, body)
            except KeyError as error:  # its variant was replaced after this was sent
                reason = str(error.args[0])
            else:
                put = self._results_in.put if self._maps else _nowhere
                self._send(_done(run_id, results, time.monotonic_ns() - started_ns, put))
                return
        self._send(encode({"t": "not_run", "id": run_id, "reason": reason}))

    def _results(self, header: Header, body: Body | None) -> Sequence[Any]:
        try:
            items = unpack_items(header["in"], header["count"], body, header.get("at"))
        except Exception as error:  # only these items are affected, and are told
            return [RuntimeError(str(error))] * header["count"]  # see `ItemRunner`
        return self._host.run(header["model"], header["variant"], items)


def _nowhere(_parts: Sequence[Any], _size: int) -> int | None:
    return None


def _done(
    run_id: int,
    results: Sequence[Any],
    execute_ns: int,
    put: Callable[[Sequence[Any], int], int | None],
) -> list[Any]:
    errors: list[list[Any]] = []
    packed: list[list[Any]] = []
    places: list[int | None] = []
    buffers: list[Any] = []
    room = LINK_LIMITS.body_bytes
    for index, result in enumerate(results):
        if isinstance(result, Exception):
            errors.append([index, str(result)])
            continue
        specs, parts = pack_tensors(result)
        size = sum(map(len, parts))
        padding = -size % ALIGNMENT
        if size > ANSWER_BYTES:
            most = f"an answer has room for {ANSWER_BYTES:,}"
            errors.append([index, f"its outputs take {size:,} bytes; {most}"])
            continue
        place = put(parts, size)
        if place is None and size + padding > room:
            errors.append([index, f"its outputs take {size:,} bytes, more than a message has left"])
            continue
        if packed and packed[-1][0] == specs:
            packed[-1][1] += 1
        else:
            packed.append([specs, 1])
        places.append(place)
        if place is None:
            room -= size + padding
            buffers.extend(parts)
            if padding:
                buffers.append(bytes(padding))
    header = {"t": "done", "id": run_id, "execute_ns": execute_ns, "out": packed, "errors": errors}
    if any(place is not None for place in places):
        header["at"] = places
    return encode(header, buffers)
