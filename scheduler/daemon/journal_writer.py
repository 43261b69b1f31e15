"""Writes the files of a journal in a thread, and removes the oldest for the newest."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from scheduler.address import plainly
from scheduler.journal_format import SUFFIX

FLUSH_S = 0.2
"""How much of the journal a crash may lose."""

CLOSE_S = 2.0
"""How long to wait for the last writes at the end."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JournalBounds:
    """Limits on the size of a journal.

    Attributes:
        bytes: Most bytes in the whole folder. Each file may take an equal share of them, but never
            less than twice its header, which grows with the targets and their offers.
        files: Most files in the folder.
        waiting_bytes: Most bytes that may wait for a slow disk.
    """

    bytes: int = 64_000_000
    files: int = 8
    waiting_bytes: int = 8_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a file, and how large the file may get."""

    path: Path
    head: bytes
    full_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A record that is not an event; if it is lost, `missing` events stay without a gap mark."""

    data: bytes
    missing: int


Item = bytes | Mark | Part
"""What is queued; bytes are the record of an event."""


def open_part(path: Path) -> BinaryIO:
    """Opens a new file that only its owner can read, unbuffered."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return open(number, "wb", buffering=0)


class JournalWriter:
    """The thread that writes the files; the event loop queues what it is to write.

    Args:
        folder: Where the files go.
        bounds: Limits on the journal's size.
        open_part: Opens a new file.

    Attributes:
        taken_bytes: How much it has taken off the queue.
        lost: Number of events that could not be written.
        unmarked: These, plus the events whose gap mark could not be written.
        failed: The file has been given up; the loop must begin another.
        problem: Why nothing can be written; None while it can.
    """

    def __init__(
        self,
        folder: Path,
        bounds: JournalBounds,
        open_part: Callable[[Path], BinaryIO],
    ) -> None:
        """Has nothing to write."""
        self.taken_bytes = 0
        self.lost = 0
        self.unmarked = 0
        self.failed = False
        self.problem: str | None = None
        self._folder = folder
        self._bounds = bounds
        self._open_part = open_part
        self._queue: deque[Item] = deque()
        self._queued_bytes = 0
        self._wanted = threading.Event()
        self._file: BinaryIO | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="laxity-journal", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """How much is queued."""
        return self._queued_bytes - self.taken_bytes

    def put(self, item: Item, size: int) -> None:
        """Queues an item of so many bytes, to be written within `FLUSH_S`."""
        self._queued_bytes += size
        self._queue.append(item)
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self) -> None:
        """Writes what is queued and ends the thread, waiting at most `CLOSE_S`."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._closing.wait(FLUSH_S)
            self._wanted.clear()
            self._write_all()
        self._write_all()
        self._shut()

    def _write_all(self) -> None:
        block: list[bytes | Mark] = []
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, Part):
                self._write(block)
                block.clear()
                self._next(item)
            else:
                block.append(item)
        self._write(block)

    def _next(self, part: Part) -> None:
        self._shut()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # gone, or not there yet
            self._make_room(part)
            self._file = self._open_part(part.path)
            self._write_bytes(part.head)
        except OSError as error:
            if self._file is not None:
                with contextlib.suppress(OSError):  # removing it may fail too
                    part.path.unlink()  # else broken files would push out good ones
            self._give_up(error)
        self.taken_bytes += len(part.head)

    def _write_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._file is not None:
            view = view[self._file.write(view) :]

    def _write(self, block: list[bytes | Mark]) -> None:
        if not block:
            return
        data = b"".join([item.data if isinstance(item, Mark) else item for item in block])
        if self._file is None:
            self._lose(block)
        else:
            try:
                self._write_bytes(data)
            except OSError as error:
                self._lose(block)
                self._give_up(error)
            else:
                self._rejoice()
        self.taken_bytes += len(data)

    def _lose(self, block: list[bytes | Mark]) -> None:
        events = sum(type(item) is bytes for item in block)
        self.lost += events
        self.unmarked += events + sum(i.missing for i in block if isinstance(i, Mark))

    def _rejoice(self) -> None:
        if self.problem is not None:
            self.problem = None
            log.info("the journal goes on", folder=str(self._folder))

    def _give_up(self, error: OSError) -> None:
        """Abandons the file, which may end in the middle of a record."""
        self._shut()
        self.failed = True
        is_new = self.problem is None
        self.problem = plainly(error)
        if is_new:
            log.error("the journal can't be written", folder=str(self._folder), error=str(error))

    def _shut(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _make_room(self, part: Part) -> None:
        """Removes the oldest files, so that there is room for one more full file.

        This run's own files count as the newest, even if the clock was wrong when others wrote.
        """
        bounds, run = self._bounds, part.path.name.rpartition("-")[0]
        found = self._folder.glob(f"*{SUFFIX}")
        files = sorted(found, key=lambda file: (file.name.startswith(run), file.name))
        sizes = [file.stat().st_size for file in files]
        total = sum(sizes) + part.full_bytes
        count = len(files) + 1
        for file, size in zip(files, sizes, strict=True):
            if count <= bounds.files and total <= bounds.bytes:
                return
            file.unlink(missing_ok=True)
            count -= 1
            total -= size
