"""The database in threads of its own: many submissions share one fsync, and the loop never blocks.

The writer commits everything that arrived during its last commit. The busier it is, the more
operations share a commit: group commit without a timer. The reader has its own connection, because
a look-up must not wait for the disk's write cache. It serves tenants in turn, so that a tenant with
many look-ups delays only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from scheduler.durable.database import FILE, Damaged, Database, Op, told
from scheduler.durable.records import Bounds
from scheduler.errors import LaxityError, Overloaded, Unavailable
from scheduler.files import sync_folder

MOST_AT_ONCE = 1_000
"""The most operations in one transaction."""

LOOKS_AT_ONCE = 4
"""The most look-ups of one tenant before the next one's turn."""

MOST_LOOKS = 10_000
"""The most look-ups of one tenant that may wait."""

LOCK_S = 10.0
"""How long to wait for a store that another process still holds."""

Then = Callable[[Any], None]
"""Called on the loop with the result of an operation, or with its `LaxityError`."""

log = structlog.get_logger()


class _Worker:
    """A thread that runs queued operations, up to `at_once` of each queue per turn, in order."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, at_once: int) -> None:
        self._loop = loop
        self._at_once = at_once
        self._ready = threading.Condition()
        self._queues: dict[str, deque[tuple[Op, Then]]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(
        self, opened: Callable[[], Database], work: Callable[[Database], Callable[..., list[Any]]]
    ) -> None:
        """Opens a database in the thread and works on it; if it can't, refuses every operation."""
        self._opened = opened
        self._work = work
        self._thread.start()

    def put(self, op: Op, then: Then, queue: str = "") -> None:
        """Appends an operation to a queue."""
        with self._ready:
            self._queues.setdefault(queue, deque()).append((op, then))
            self._ready.notify()

    def waiting(self, queue: str) -> int:
        """The length of a queue."""
        with self._ready:
            return len(self._queues.get(queue, ()))

    def end(self) -> None:
        """Has the thread end once the queued operations are completed."""
        with self._ready:
            self._closing = True
            self._ready.notify()

    def close(self) -> None:
        """Completes the queued operations and ends the thread."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        try:
            database = self._opened()
        except Exception as error:  # of any kind: callers wait for answers
            self._refuse(f"no durable tasks until the cause is mended: {told(error)}")
            return
        work = self._work(database)
        while batch := self._take():
            self._tell(batch, work([op for op, _ in batch]))
            del batch  # while this waits: an operation refers to the tensors that it wrote
        database.close()

    def _refuse(self, text: str) -> None:
        while batch := self._take():
            self._tell(batch, [Unavailable(text, {"durable": False}) for _ in batch])

    def _take(self) -> list[tuple[Op, Then]]:
        with self._ready:
            while not self._queues and not self._closing:
                self._ready.wait()
            batch = []
            for name, queue in list(self._queues.items()):
                batch += [queue.popleft() for _ in range(min(len(queue), self._at_once))]
                if not queue:
                    del self._queues[name]
            return batch

    def _tell(self, batch: list[tuple[Op, Then]], found: Sequence[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the callers with it
            self._loop.call_soon_threadsafe(_tell, [then for _, then in batch], found)


def _tell(thens: list[Then], found: Sequence[Any]) -> None:
    for then, value in zip(thens, found, strict=True):
        try:
            then(value)
        except Exception:  # of one caller, who must not cost the others their answers
            log.exception("an answer about a task failed")


class _Opening:
    """An attempt to open the store, by a writer and a reader of its own.

    Attributes:
        opened: Set once the writer has opened the database, or could not.
        refused: Why the writer could not; None if it could, or has not tried yet.
        problem: What is wrong, in words for people; None if nothing is.
    """

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.refused: Exception | None = None
        self.problem: str | None = None


class Store:
    """The tasks of one folder.

    Args:
        folder: Created if missing, accessible to its owner alone.
        bounds: Limits on what is kept.
        loop: The loop on which callbacks run.
    """

    def __init__(self, folder: Path, bounds: Bounds, loop: asyncio.AbstractEventLoop) -> None:
        """Starts to open the store; operations queued meanwhile run when it is open."""
        self._folder = folder
        self._bounds = bounds
        self._loop = loop
        self._lock: int | None = None
        self._opening = _Opening()
        self._writer, self._reader = self._started(self._opening)

    @property
    def refuses(self) -> bool:
        """Whether it could not be opened, and so refuses every operation."""
        return self._opening.refused is not None

    @property
    def problem(self) -> str | None:
        """What is wrong with the store, in words for people; None if nothing is."""
        return self._opening.problem

    @problem.setter
    def problem(self, told: str) -> None:
        self._opening.problem = told

    def _started(self, opening: _Opening) -> tuple[_Worker, _Worker]:
        writer = _Worker("laxity-tasks-write", self._loop, MOST_AT_ONCE)
        reader = _Worker("laxity-tasks-read", self._loop, LOOKS_AT_ONCE)
        writer.start(partial(self._open, opening), lambda database: database.commit)
        reader.start(partial(self._open_reading, opening), lambda database: database.look)
        return writer, reader

    def open_again(self, op: Op, then: Then) -> None:
        """Tries to open what could not be opened; until that is done, operations are refused.

        Args:
            op: The first operation of the open store.
            then: Called with its result, or with the error if the store can't be opened yet.
        """
        opening = _Opening()
        fresh = self._started(opening)

        def looked(found: Any) -> None:
            useless = fresh
            if not isinstance(found, LaxityError):
                useless = self._writer, self._reader
                self._writer, self._reader, self._opening = *fresh, opening
            elif opening.refused is not None:
                self._opening = opening  # with the latest reason
            else:
                self._unlock()  # it was opened, but can't be used: the next attempt locks it again
            for worker in useless:
                worker.end()
            then(found)

        fresh[0].put(op, looked)

    def write(self, op: Op, then: Then = lambda _: None) -> None:
        """Queues a write; `then` is called when it is on disk."""
        self._writer.put(op, then)

    def read(self, op: Op, then: Then, tenant: str = "") -> None:
        """Queues a look-up, which sees every write that was answered before.

        Args:
            op: The look-up.
            then: Called with what was found; at once with `Overloaded` if the tenant has too many
                look-ups waiting.
            tenant: Who asks. Tenants take turns of at most `LOOKS_AT_ONCE` look-ups; "" is the box.
        """
        if tenant and self._reader.waiting(tenant) >= MOST_LOOKS:
            text = f"{tenant!r} has {MOST_LOOKS} look-ups of tasks waiting already"
            then(Overloaded(text, {"tenant": tenant, "limit": "looks"}))
            return
        self._reader.put(op, then, tenant)

    def close(self) -> None:
        """Completes the queued operations and releases the folder."""
        self._reader.close()
        self._writer.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, opening: _Opening) -> Database:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self._folder)
            database, damage = open_database(self._folder / FILE, self._bounds)
            for place in (self._folder, self._folder.parent):
                sync_folder(place)  # their entries; SQLite syncs the files
            opening.problem = damage
        except Exception as error:
            self._cannot(opening, error)
            opening.refused = error
            self._unlock()
            raise
        finally:
            opening.opened.set()  # last: the reader may find a problem of its own
        if damage is not None:
            log.error("durable tasks were lost", damage=damage)
        return database

    def _open_reading(self, opening: _Opening) -> Database:
        """Opens the read-only connection; refuses if the writer's failed, as on a locked folder."""
        opening.opened.wait()
        if opening.refused is not None:
            raise opening.refused
        try:
            return Database(self._folder / FILE, self._bounds, reading=True)
        except Exception as error:
            self._cannot(opening, error)
            raise

    def _cannot(self, opening: _Opening, error: Exception) -> None:
        problem = f"{self._folder}: {told(error)}; durable tasks are refused until that is mended"
        is_new = problem != self.problem  # it is tried again and again
        opening.problem = problem
        if is_new:
            log.error("no durable tasks", folder=str(self._folder), error=told(error))


def open_database(path: Path, bounds: Bounds) -> tuple[Database, str | None]:
    """Opens a database; moves a damaged one aside and starts a new one.

    Returns:
        The database, and what was wrong with a damaged one, in words for people, or None.

    Raises:
        sqlite3.Error: The file can't be opened, which says nothing about its contents.
    """
    try:
        return Database(path, bounds), None
    except Damaged as damage:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = path.with_name(f"{path.name}.damaged-{stamp}")
        for ending in ("-wal", "-shm", ""):
            part = path.with_name(path.name + ending)
            if part.exists():
                part.rename(aside.with_name(aside.name + ending))
        text = f"{path} is damaged ({damage}); it was moved to {aside}, and a new one started"
        return Database(path, bounds), text


def _locked(folder: Path) -> int:
    """Locks the folder, so that no two processes run the same tasks.

    Raises:
        OSError: Another process holds it.
    """
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > end_s:
                os.close(lock)
                raise OSError("another process holds this folder of tasks") from None
            time.sleep(0.05)  # a killed predecessor releases the lock within moments
