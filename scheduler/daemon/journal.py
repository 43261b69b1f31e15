"""The scheduler's journal: every event and command, in files of bounded size.

The event loop encodes each event, which costs a few microseconds; a thread writes the bytes every
`FLUSH_S`. Encoding in the thread would cost as much, because there is one interpreter lock, and
would hold up the loop whenever the thread has the lock. If the disk is too slow, events are left
out, counted, and marked in the file; the loop never waits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from scheduler.core.commands import Command
from scheduler.core.events import (
    Event,
    PolicySwapped,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
)
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.journal_format import (
    SUFFIX,
    Encoder,
    Header,
    JournalledPolicy,
    Target,
    encode_header,
    plain_options,
)

FLUSH_S = 0.2
"""How much of the journal a crash may lose."""

MOST_WAITING_BYTES = 8_000_000
"""How much may wait for a slow disk."""

_CLOSE_S = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JournalBounds:
    """Limits on the size of a journal.

    Attributes:
        bytes: Most bytes in the whole folder. Each file may take an equal share of them, but never
            less than twice its header, which grows with the targets and their offers.
        files: Most files in the folder.
        waiting_bytes: Most bytes that may wait to be written.
    """

    bytes: int = 64_000_000
    files: int = 8
    waiting_bytes: int = MOST_WAITING_BYTES


@dataclass(frozen=True, slots=True)
class _Part:
    """The beginning of a file, and how large the file may get."""

    path: Path
    head: bytes
    full_bytes: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A record that is not an event; if it is lost, `missing` events stay without a gap mark."""

    data: bytes
    missing: int


_Item = bytes | _Mark | _Part


def open_part(path: Path) -> BinaryIO:
    """Opens a new file that only its owner can read, unbuffered."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return open(number, "wb", buffering=0)


class Journal:
    """Records the events and commands of one scheduler.

    Args:
        folder: Where the files go; created if needed. The oldest files there are removed, whoever
            wrote them.
        policy: Name and options of the first policy.
        limits: The scheduler's limits.
        bounds: Limits on the journal's size.
        clock_ns: The scheduler's clock.
        open_part: Opens a new file.
    """

    def __init__(
        self,
        folder: Path,
        policy: tuple[str, dict[str, Any]],
        limits: Limits,
        bounds: JournalBounds = JournalBounds(),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        open_part: Callable[[Path], BinaryIO] = open_part,
    ) -> None:
        """Begins the first file of a run."""
        self.folder = folder
        wall_ns = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns // 10**9))
        self._run = f"{stamp}.{wall_ns // 1000 % 10**6:06d}Z-{os.getpid()}"
        self._policy = JournalledPolicy(policy[0], plain_options(policy[1]))
        self._limits = limits
        self._bounds = bounds
        self._version = metadata.version("laxity")
        self._targets: dict[str, Target] = {}
        self._part = 0
        self._part_bytes = self._full_bytes = 0
        self._skipped = 0
        self._told = 0
        self._queued_bytes = 0
        self._queue: deque[_Item] = deque()
        self._encoder = Encoder(0, 0)
        self._writer = _Writer(folder, self._queue, bounds, open_part)
        self._begin(clock_ns())

    @property
    def dropped(self) -> int:
        """The number of events missing from the files."""
        return self._skipped + self._writer.lost

    def status(self) -> dict[str, Any]:
        """The journal's folder, sizes and problem, for people and programs."""
        return {
            "folder": str(self.folder),
            "written_bytes": self._writer.taken_bytes,
            "waiting_bytes": self._queued_bytes - self._writer.taken_bytes,
            "dropped": self.dropped,
            "problem": self._writer.problem,
        }

    def note(
        self,
        at_ns: int,
        event: Event,
        commands: Sequence[Command],
        policy: tuple[str, dict[str, Any]],
        failure: str | None = None,
    ) -> None:
        """Records one step of the scheduler; never waits and never raises.

        Args:
            at_ns: The time of the step.
            event: The event the scheduler handled.
            commands: The commands it gave.
            policy: Name and options of the policy that decides from then on.
            failure: What the policy did wrong, if it failed.
        """
        if type(event) in _RARE:
            self._keep_up(event, policy)
        writer = self._writer
        if self._queued_bytes - writer.taken_bytes > self._bounds.waiting_bytes:
            self._skipped += 1
            return
        try:
            if writer.failed or self._part_bytes > self._full_bytes:
                self._begin(at_ns)
            missing = self._skipped + writer.unmarked - self._told
            if missing:
                self._told += missing
                self._mark(self._encoder.gap(at_ns, missing), missing)
            self._put(self._encoder.entry(at_ns, event, commands, self._policy.options, failure))
        except Exception:  # requests matter more than the journal
            log.exception("an event could not be journalled")
            self._skipped += 1
            self._begin(at_ns)
        if not writer.wanted.is_set():
            writer.wanted.set()

    def close(self) -> None:
        """Writes what is queued, waiting at most `_CLOSE_S`."""
        self._mark(self._encoder.closed())
        self._writer.close()

    def _put(self, data: bytes) -> None:
        size = len(data)
        self._part_bytes += size
        self._queued_bytes += size
        self._queue.append(data)

    def _mark(self, data: bytes, missing: int = 0) -> None:
        self._part_bytes += len(data)
        self._queued_bytes += len(data)
        self._queue.append(_Mark(data, missing))

    def _begin(self, at_ns: int) -> None:
        """Starts a new file, which can be read on its own."""
        if self._part and not self._writer.failed:
            self._mark(self._encoder.closed())
        self._writer.failed = False
        self._part += 1
        self._encoder = Encoder(at_ns, self._encoder.last_id)
        header = Header(
            version=self._version,
            run=self._run,
            part=self._part,
            wall_ns=time.time_ns(),
            at_ns=at_ns,
            last_id=self._encoder.last_id,
            policy=self._policy,
            limits=self._limits,
            targets=tuple(self._targets.values()),
        )
        head = encode_header(header)
        self._part_bytes = len(head)
        self._full_bytes = max(self._bounds.bytes // self._bounds.files, 2 * len(head))
        self._queued_bytes += len(head)
        path = self.folder / f"{self._run}-{self._part:06d}{SUFFIX}"
        self._queue.append(_Part(path, head, self._full_bytes))
        self._writer.wanted.set()

    def _keep_up(self, event: Event, policy: tuple[str, dict[str, Any]]) -> None:
        """Keeps the policy and targets up to date for the header of the next file."""
        targets = self._targets
        match event:
            case PolicySwapped():
                self._policy = JournalledPolicy(event.name, plain_options(policy[1]))
            case TargetUp(spec):
                targets[spec.id] = Target(spec, up=True)
            case TargetDown(target_id, removed=True):
                targets.pop(target_id, None)
            case TargetDown(target_id) if target_id in targets:
                targets[target_id] = replace(targets[target_id], up=False)
            case TargetReport(target_id, offers) if target_id in targets:
                known = targets[target_id]
                spec = replace(known.spec, offers=_merged(known.spec.offers, offers))
                targets[target_id] = replace(known, spec=spec)
            case TargetWithdrew(target_id, variants) if target_id in targets:
                known = targets[target_id]
                left = [o for o in known.spec.offers if (o.model, o.variant) not in variants]
                spec = replace(known.spec, offers=tuple(left))
                targets[target_id] = replace(known, spec=spec)
            case TargetChanged(spec) if spec.id in targets:
                known = targets[spec.id]
                offers = _merged(known.spec.offers, spec.offers)
                targets[spec.id] = replace(known, spec=replace(spec, offers=offers))


_RARE = frozenset(
    {PolicySwapped, TargetUp, TargetDown, TargetReport, TargetWithdrew, TargetChanged}
)


def _merged(known: Iterable[Offer], new: Iterable[Offer]) -> tuple[Offer, ...]:
    by_name = {(offer.model, offer.variant): offer for offer in (*known, *new)}
    return tuple(by_name.values())


class _Writer:
    """The thread that writes the files.

    Attributes:
        wanted: Set by the loop when there is something to write.
        taken_bytes: How much it has taken off the queue.
        lost: Number of events that could not be written.
        unmarked: These, plus the events whose gap mark could not be written.
        failed: The file has been given up; the loop must begin another.
        problem: Why nothing can be written; None while it can.
    """

    def __init__(
        self,
        folder: Path,
        queue: deque[_Item],
        bounds: JournalBounds,
        open_part: Callable[[Path], BinaryIO],
    ) -> None:
        self.wanted = threading.Event()
        self.taken_bytes = 0
        self.lost = 0
        self.unmarked = 0
        self.failed = False
        self._folder = folder
        self._queue = queue
        self._bounds = bounds
        self._open_part = open_part
        self._file: BinaryIO | None = None
        self.problem: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="laxity-journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self.wanted.set()
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        while not self._closing.is_set():
            self.wanted.wait()
            self._closing.wait(FLUSH_S)
            self.wanted.clear()
            self._write_all()
        self._write_all()
        self._shut()

    def _write_all(self) -> None:
        block: list[bytes | _Mark] = []
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, _Part):
                self._write(block)
                block.clear()
                self._next(item)
            else:
                block.append(item)
        self._write(block)

    def _next(self, part: _Part) -> None:
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

    def _write(self, block: list[bytes | _Mark]) -> None:
        if not block:
            return
        data = b"".join([item.data if isinstance(item, _Mark) else item for item in block])
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

    def _lose(self, block: list[bytes | _Mark]) -> None:
        events = sum(type(item) is bytes for item in block)
        self.lost += events
        self.unmarked += events + sum(i.missing for i in block if isinstance(i, _Mark))

    def _rejoice(self) -> None:
        if self.problem is not None:
            self.problem = None
            log.info("the journal goes on", folder=str(self._folder))

    def _give_up(self, error: OSError) -> None:
        """Abandons the file, which may end in the middle of a record."""
        self._shut()
        self.failed = True
        if self.problem is None:
            log.error("the journal can't be written", folder=str(self._folder), error=str(error))
        self.problem = error.strerror or str(error)

    def _shut(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _make_room(self, part: _Part) -> None:
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
