"""An emulated link: a delay and a rate between the scheduler and an emulated device's worker.

The bytes still pass through unix sockets, so everything that the scheduler does to reach a device
is real. Batches travel while the device runs others.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from workers.link_server import listener_at

_CHUNK_BYTES = 1 << 16
_RETRY_S = 0.02

Chunk = tuple[int, bytes]
"""When the bytes are due at the other end, on the monotonic clock, and the bytes; empty at the end
of the stream."""


class LinkProfile(BaseModel):
    """The `link` among an emulated device's options.

    Attributes:
        rtt_ms: The round trip of a small message, in milliseconds; each direction takes half of it.
        mbps: Megabits per second in each direction; None for no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rtt_ms: Annotated[float, Field(strict=True, ge=0, le=1e9)] = 0.0
    mbps: Annotated[float, Field(strict=True, gt=0, le=1e9)] | None = None

    @property
    def way_ns(self) -> int:
        """The delay of one direction, in nanoseconds."""
        return round(self.rtt_ms * 1e6 / 2)

    @property
    def byte_ns(self) -> float:
        """The time that a byte occupies the link, in nanoseconds."""
        return 8e3 / self.mbps if self.mbps else 0.0

    @property
    def transfer_ns(self) -> tuple[int, float]:
        """The scheduler's model: nanoseconds per round trip, and nanoseconds per byte."""
        return 2 * self.way_ns, self.byte_ns


class EmulatedLink:
    """A proxy before a worker's socket that passes bytes on with the link's delay and rate.

    Args:
        profile: Delay and rate.
        front: The unix socket to which the scheduler connects; a stale one is replaced.
        back: The worker's own socket.
    """

    def __init__(self, profile: LinkProfile, front: Path, back: Path) -> None:
        """Start listening, so that a scheduler can connect."""
        self._profile = profile
        self._back = back
        self._listener = listener_at(front)

    def serve_forever(self) -> None:
        """Serves one scheduler's connection after another."""
        while True:
            near, _ = self._listener.accept()
            far = _connected(self._back)
            ways = [_Way(near, far, self._profile), _Way(far, near, self._profile)]
            for way in ways:
                way.join()
            near.close()
            far.close()


def _connected(path: Path) -> socket.socket:
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(str(path))
        except OSError:
            peer.close()
            time.sleep(_RETRY_S)
            continue
        return peer


class _Way:
    """One direction: writes the bytes it reads once the link would have carried them."""

    def __init__(self, source: socket.socket, sink: socket.socket, profile: LinkProfile) -> None:
        self._source = source
        self._sink = sink
        self._profile = profile
        self._chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name="laxity-emulated-link", daemon=True)
            for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        free_ns = 0
        data = b"-"
        while data:
            try:
                data = self._source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            sent_ns = max(free_ns, time.monotonic_ns())
            free_ns = sent_ns + int(len(data) * self._profile.byte_ns)
            self._chunks.put((free_ns + self._profile.way_ns, data))

    def _write(self) -> None:
        while True:
            due_ns, data = self._chunks.get()
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            try:
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                    return
                self._sink.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):  # ends the reading side too
                    self._source.shutdown(socket.SHUT_RD)
                return
