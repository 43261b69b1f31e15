"""The database in threads of its own: many submissions share one fsync, and nobody waits for it.

A writer commits whatever came while it was busy with the last commit, so the busier it is the more
share a commit: group commit without a timer. A reader has a connection of its own, because a look
must not wait for the disk's write cache. It serves those who ask in turn: who asks for much waits
for that alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from scheduler.durable.database import FILE, Damaged, Database, Op
from scheduler.durable.records import Bounds
from scheduler.errors import Overloaded, Unavailable

MOST_AT_ONCE = 1_000
"""Operations of one transaction."""

LOOKS_AT_ONCE = 4
"""Looks of each who asks, before the next one's turn."""

MOST_LOOKS = 10_000
"""Looks of each that may wait."""

LOCK_S = 10.0
"""How long a store is waited for that another process has not let go yet."""

Then = Callable[[Any], None]
"""Called on the loop with what came of an operation, or with its `LaxityError`."""

log = structlog.get_logger()


class _Worker:
    """A thread that does what is in its queues, in each of them in order, some of each at once."""

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
        """Opens a database in the thread and works on it; what fails is everyone's answer."""
        self._opened = opened
        self._work = work
        self._thread.start()

    def put(self, op: Op, then: Then, queue: str = "") -> None:
        """Has something done, after all that was put into that queue before."""
        with self._ready:
            self._queues.setdefault(queue, deque()).append((op, then))
            self._ready.notify()

    def waiting(self, queue: str) -> int:
        """How much is in a queue."""
        with self._ready:
            return len(self._queues.get(queue, ()))

    def close(self) -> None:
        """Does what is in the queues, and ends."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            database = self._opened()
        except (sqlite3.Error, OSError) as error:
            self._refuse(f"durable tasks can't be had: {error}")
            return
        work = self._work(database)
        while batch := self._take():
            self._tell(batch, work([op for op, _ in batch]))
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
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            self._loop.call_soon_threadsafe(_tell, [then for _, then in batch], found)


def _tell(thens: list[Then], found: Sequence[Any]) -> None:
    for then, value in zip(thens, found, strict=True):
        then(value)


class Store:
    """The tasks of one folder.

    Args:
        folder: Made if need be; readable by its owner alone.
        bounds: How much is kept at most.
        loop: Where answers are wanted.

    Attributes:
        problem: What is wrong with it, in words for people; None if nothing is.
    """

    def __init__(self, folder: Path, bounds: Bounds, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to open it; what is asked meanwhile is answered when it is open."""
        self.problem: str | None = None
        self._folder = folder
        self._bounds = bounds
        self._opened = threading.Event()
        self._refused: sqlite3.Error | OSError | None = None
        self._lock: int | None = None
        self._writer = _Worker("laxity-tasks-write", loop, MOST_AT_ONCE)
        self._reader = _Worker("laxity-tasks-read", loop, LOOKS_AT_ONCE)
        self._writer.start(self._open, lambda database: database.commit)
        self._reader.start(self._open_reading, lambda database: database.look)

    def write(self, op: Op, then: Then = lambda _: None) -> None:
        """Has something written; `then` hears when it is on disk."""
        self._writer.put(op, then)

    def read(self, op: Op, then: Then, tenant: str = "") -> None:
        """Has something looked up; it sees what `write` has answered.

        Args:
            op: What to look up.
            then: Told what was found; `Overloaded` at once where that tenant asks for too much.
            tenant: Who asks, and waits for nobody else's looks but one of each; "" is the box.
        """
        if tenant and self._reader.waiting(tenant) >= MOST_LOOKS:
            text = f"{tenant!r} waits for {MOST_LOOKS} looks at tasks already"
            then(Overloaded(text, {"tenant": tenant, "limit": "looks"}))
            return
        self._reader.put(op, then, tenant)

    def close(self) -> None:
        """Writes what is to be written, and lets go of the folder."""
        self._reader.close()
        self._writer.close()
        if self._lock is not None:
            os.close(self._lock)

    def _open(self) -> Database:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self._folder)
            database, damage = open_database(self._folder / FILE, self._bounds)
            _sync(self._folder)
        except (sqlite3.Error, OSError) as error:
            self._cannot(error)
            self._refused = error
            raise
        finally:
            self._opened.set()
        if damage is not None:
            self.problem = damage
            log.error("durable tasks were lost", damage=damage)
        return database

    def _open_reading(self) -> Database:
        """Reads nothing that may not be written: another process's tasks, say."""
        self._opened.wait()
        if self._refused is not None:
            raise self._refused
        try:
            return Database(self._folder / FILE, self._bounds, reading=True)
        except (sqlite3.Error, OSError) as error:
            self._cannot(error)
            raise

    def _cannot(self, error: Exception) -> None:
        self.problem = f"{self._folder}: {error}"
        log.error("no durable tasks", folder=str(self._folder), error=str(error))


def open_database(path: Path, bounds: Bounds) -> tuple[Database, str | None]:
    """The database of a folder; a damaged one is moved aside.

    Returns:
        It, and what was wrong with the one before, in words for people.

    Raises:
        sqlite3.Error: It can't be opened, which says nothing of what is in it.
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
        text = f"{path} is damaged ({damage}); it was moved to {aside}, and a new one begun"
        return Database(path, bounds), text


def _locked(folder: Path) -> int:
    """Holds the folder, so that no two processes run the same tasks.

    Raises:
        OSError: Another process has it.
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
            time.sleep(0.05)  # a predecessor that was killed lets go within moments


def _sync(folder: Path) -> None:
    """Makes sure that the folder's entries are on disk; SQLite sees to the files."""
    for place in (folder, folder.parent):
        number = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
