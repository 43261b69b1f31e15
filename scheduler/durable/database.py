"""The SQLite tables of durable tasks and the operations on them. One thread at a time.

An operation has happened once its transaction is committed: with WAL and `synchronous=FULL`, SQLite
returns from the commit when the log is on disk (fsync). The checksums of a log torn by a power cut
make it end with the last whole transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgpack

from scheduler.durable.records import Bounds, Ended, KeptTask, NewTask, Specs
from scheduler.durable.rows import COLUMNS, header_from, kept_from, specs_from
from scheduler.errors import LaxityError, Overloaded, TaskConflict, Unavailable

FILE = "tasks.db"
VERSION = 2
PURGED_AT_ONCE = 500
"""The most expired tasks removed in one transaction, so that no transaction takes long."""

_SCHEMA = """
CREATE TABLE tasks (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL,
  digest BLOB NOT NULL, model TEXT NOT NULL, variant TEXT, specs BLOB NOT NULL,
  has_batch INTEGER NOT NULL, priority INTEGER NOT NULL, bytes INTEGER NOT NULL,
  submitted_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  outcome TEXT, reason TEXT NOT NULL DEFAULT '', ended_ms INTEGER,
  UNIQUE (tenant, id));
CREATE INDEX by_end ON tasks (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE TABLE inputs (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE outputs (seq INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE clock (shift_ms INTEGER NOT NULL, seen_ms INTEGER NOT NULL);
INSERT INTO clock VALUES (0, 0);
"""
_KEPT = "ended ones for durable.keep_results_s or until they are forgotten"

Op = Callable[["Database"], Any]
"""An operation within a transaction. If it raises a `LaxityError`, it has changed nothing."""


class Damaged(sqlite3.DatabaseError):
    """The file is not a valid database; the message is SQLite's."""


class Database:
    """One connection.

    Args:
        path: The file, created if missing. Its folder must exist.
        bounds: Limits on what is kept.
        reading: Opens it read-only; the file must exist.

    Raises:
        Damaged: The file is corrupt.
        sqlite3.Error: The file can't be opened.
    """

    def __init__(self, path: Path, bounds: Bounds, reading: bool = False) -> None:
        """Opens the file; if not `reading`, checks all of it and creates missing tables."""
        self._bounds = bounds
        self._path = path
        self._use: dict[str, list[int]] = {}
        if not reading:
            path.touch(0o600)  # SQLite gives its files beside it the same mode
        mode = "ro" if reading else "rwc"
        self._sql = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}", uri=True, isolation_level=None, timeout=10
        )
        # Of text that is damaged, as much as can be read: an error would cost every task in a list.
        self._sql.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            if not reading:
                self._prepare()
        except sqlite3.Error as error:
            self._sql.close()
            if is_damage(error):
                raise Damaged(str(error)) from None
            raise
        self._identity = _identity(path)

    def _prepare(self) -> None:
        sql = self._sql
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute("PRAGMA journal_size_limit = 16000000")
        (found,) = sql.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged(" ".join(found.split()))
        (version,) = sql.execute("PRAGMA user_version").fetchone()
        if version == 0:
            sql.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        elif version != VERSION:
            raise sqlite3.NotSupportedError(
                f"it was written by another version of laxity (format {version}, not {VERSION})"
            )
        if self._bounds.disk_bytes is not None:
            (page,) = sql.execute("PRAGMA page_size").fetchone()
            sql.execute(f"PRAGMA max_page_count = {self._bounds.disk_bytes // page}")
        self._count()

    def _count(self) -> None:
        self._use = {
            tenant: [tasks, size]
            for tenant, tasks, size in self._sql.execute(
                "SELECT tenant, count(*), sum(bytes) FROM tasks GROUP BY tenant"
            )
        }

    def close(self) -> None:
        """Closes the connection; the last one to close moves the log into the file."""
        self._sql.close()

    # -- transactions

    def commit(self, ops: Sequence[Op]) -> list[Any]:
        """Runs several operations in one transaction; returns each one's result or error.

        If the transaction fails (a full disk, say), each operation is tried in a transaction of its
        own, because those that free space may work. An operation that fails on damaged data is
        answered with an error too: an exception would end the thread, and with it all tasks.

        SQLite goes on writing to a file that has been removed; nobody would find it again.
        """
        try:
            if _identity(self._path) != self._identity:
                raise OSError(f"{self._path} has been removed or replaced; restart the box")
            with self._transaction("IMMEDIATE"):
                return [_outcome_of(op, self) for op in ops]
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                self._count()
            if len(ops) == 1:
                return [_as_answer(error)]
            return [found for op in ops for found in self.commit([op])]

    def look(self, ops: Sequence[Op]) -> list[Any]:
        """Runs several look-ups; returns each one's result or error."""
        found: list[Any] = []
        for op in ops:
            try:
                found.append(_outcome_of(op, self))
            except Exception as error:
                found.append(_as_answer(error))
        return found

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._sql.execute(f"BEGIN {kind}")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may already have rolled back
                self._sql.execute("ROLLBACK")
            raise

    # -- writing

    def add(self, task: NewTask) -> tuple[int, bool]:
        """Stores a task.

        Returns:
            Its number, and whether it is new; a task that is already stored is not stored twice.

        Raises:
            TaskConflict: A task with this id but other content is stored.
            Overloaded: A limit on tasks or bytes is reached.
        """
        content = task.content
        digest = content.asked.digest()
        known = self.find(task.tenant, task.id, digest)
        if known is not None:
            return known, False
        size = len(content.body)
        self._check_room(task, size)
        form = msgpack.packb(content.specs)
        cursor = self._sql.execute(
            "INSERT INTO tasks (tenant, id, digest, model, variant, specs, has_batch, priority, "
            "bytes, submitted_ms, deadline_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(task.tenant, task.id, digest, content.model, content.variant, form),
                *(content.has_batch, content.priority, size),
                *(task.submitted_ms, task.deadline_ms),
            ),
        )
        seq = cursor.lastrowid
        assert seq is not None
        self._sql.execute("INSERT INTO inputs VALUES (?, ?)", (seq, content.body))
        self._account(task.tenant, 1, size)
        return seq, True

    def _check_room(self, task: NewTask, size: int) -> None:
        bounds = self._bounds
        tasks, held = self.use()
        if tasks >= bounds.tasks:
            text = f"{bounds.tasks} tasks are kept already (durable.max_tasks), {_KEPT}"
            raise Overloaded(text, {"limit": "tasks"})
        if held + size > bounds.bytes:
            text = f"tasks take {held} of {bounds.bytes} bytes (durable.max_mb), {_KEPT}"
            raise Overloaded(text, {"limit": "bytes"})
        tasks, held = self._use.get(task.tenant, (0, 0))
        detail = {"tenant": task.tenant}
        if tasks >= task.tenant_tasks:
            text = f"{task.tenant!r} may keep {task.tenant_tasks} tasks, {_KEPT}"
            raise Overloaded(text, {**detail, "limit": "tasks"})
        if held + size > task.tenant_bytes:
            text = f"{task.tenant!r} may keep {task.tenant_bytes} bytes of tasks, {_KEPT}"
            raise Overloaded(text, {**detail, "limit": "bytes"})

    def end(self, ended: Ended) -> bool:
        """Gives a task its one outcome; returns False if it already has one, or is gone."""
        row = self._sql.execute(
            "SELECT tenant, bytes FROM tasks WHERE seq = ? AND outcome IS NULL", (ended.seq,)
        ).fetchone()
        if row is None:
            return False
        tenant, before = row
        self._sql.execute("DELETE FROM inputs WHERE seq = ?", (ended.seq,))
        size = 0
        if ended.header is not None and ended.body is not None:
            size = len(ended.body)
            self._sql.execute(
                "INSERT INTO outputs VALUES (?, ?, ?)",
                (ended.seq, msgpack.packb(ended.header), ended.body),
            )
        self._sql.execute(
            "UPDATE tasks SET outcome = ?, reason = ?, ended_ms = ?, bytes = ? WHERE seq = ?",
            (ended.outcome.value, ended.reason, ended.at_ms, size, ended.seq),
        )
        self._account(tenant, 0, size - before)
        return True

    def note_attempt(self, seq: int, attempts: int) -> None:
        """Stores how often a task has failed."""
        self._sql.execute("UPDATE tasks SET attempts = ? WHERE seq = ?", (attempts, seq))

    def purge(self, before_ms: int) -> int:
        """Removes up to `PURGED_AT_ONCE` tasks that ended before a time; returns how many."""
        rows = self._sql.execute(
            "SELECT seq, tenant, bytes FROM tasks WHERE ended_ms < ? ORDER BY ended_ms LIMIT ?",
            (before_ms, PURGED_AT_ONCE),
        ).fetchall()
        for row in rows:
            self._remove(*row)
        return len(rows)

    def forget(self, tenant: str, id_: str) -> int | None:
        """Removes a task, ended or not; returns its number, None if there is none."""
        row = self._sql.execute(
            "SELECT seq, tenant, bytes FROM tasks WHERE tenant = ? AND id = ?", (tenant, id_)
        ).fetchone()
        if row is None:
            return None
        self._remove(*row)
        return int(row[0])

    def _remove(self, seq: int, tenant: str, size: int) -> None:
        for table in ("inputs", "outputs", "tasks"):
            self._sql.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))
        self._account(tenant, -1, -size)

    def shift_clock(self, shift_ms: int) -> None:
        """Stores how far the wall clock is ahead of the task clock."""
        self._sql.execute("UPDATE clock SET shift_ms = ?", (shift_ms,))

    def note_time(self, now_ms: int) -> None:
        """Stores the time, in case the next start finds that the clock was set back."""
        self._sql.execute("UPDATE clock SET seen_ms = max(seen_ms, ?)", (now_ms,))

    def _account(self, tenant: str, tasks: int, size: int) -> None:
        use = self._use.setdefault(tenant, [0, 0])
        use[0] += tasks
        use[1] += size

    # -- reading

    def find(self, tenant: str, id_: str, digest: bytes | None = None) -> int | None:
        """The number of a task; None if there is none.

        Raises:
            TaskConflict: The task has another digest.
        """
        row = self._sql.execute(
            "SELECT seq, digest FROM tasks WHERE tenant = ? AND id = ?", (tenant, id_)
        ).fetchone()
        if row is None:
            return None
        seq, known = row
        if digest is not None and known != digest:
            raise TaskConflict(
                f"the id {id_!r} belongs to a task with another model, inputs or priority; "
                "use another id"
            )
        return int(seq)

    def kept(self, tenant: str, id_: str) -> KeptTask | None:
        """A stored task; None if there is none."""
        row = self._sql.execute(
            f"SELECT {COLUMNS} FROM tasks WHERE tenant = ? AND id = ?", (tenant, id_)
        ).fetchone()
        return None if row is None else kept_from(row)

    def result(self, seq: int) -> tuple[dict[str, Any], bytes] | None:
        """Header and outputs of a task that ended with a result; None for any other.

        Raises:
            Unavailable: The header is damaged.
        """
        row = self._sql.execute("SELECT header, body FROM outputs WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else (header_from(row[0]), row[1])

    def inputs(self, seqs: Iterable[int]) -> dict[int, tuple[Specs, bytes] | None]:
        """The input tensors of waiting tasks, as specs and bytes, by task number.

        Returns:
            None for a task whose inputs are missing or damaged; nothing for one that has ended.
        """
        found: dict[int, tuple[Specs, bytes] | None] = {}
        for seq in seqs:
            row = self._sql.execute(
                "SELECT specs, body FROM tasks LEFT JOIN inputs USING (seq)"
                " WHERE seq = ? AND outcome IS NULL",
                (seq,),
            ).fetchone()
            if row is not None:
                specs = None if row[1] is None else specs_from(row[0])
                found[seq] = None if specs is None else (specs, row[1])
        return found

    def waiting(self) -> list[KeptTask]:
        """All tasks that have not ended."""
        rows = self._sql.execute(f"SELECT {COLUMNS} FROM tasks WHERE outcome IS NULL")
        return [kept_from(row) for row in rows]

    def listed(self, tenant: str, count: int, before: int | None) -> list[KeptTask]:
        """Up to `count` of a tenant's tasks, newest first, numbered below `before` if given."""
        rows = self._sql.execute(
            f"SELECT {COLUMNS} FROM tasks WHERE tenant = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            (tenant, before if before is not None else 2**63 - 1, count),
        )
        return [kept_from(row) for row in rows]

    def counts(self, tenant: str) -> dict[str, int]:
        """The number of a tenant's tasks that wait, and that ended with each outcome."""
        return dict(
            self._sql.execute(
                "SELECT coalesce(outcome, 'waiting'), count(*) FROM tasks WHERE tenant = ? "
                "GROUP BY outcome",
                (tenant,),
            )
        )

    def use(self) -> tuple[int, int]:
        """The number of stored tasks, and the bytes of their tensors."""
        tasks, size = map(sum, zip((0, 0), *self._use.values(), strict=True))
        return tasks, size

    def clock(self) -> tuple[int, int]:
        """How far the wall clock is ahead of the task clock, and the latest time on disk."""
        shift_ms, seen_ms = self._sql.execute(
            "SELECT (SELECT shift_ms FROM clock), max((SELECT seen_ms FROM clock), "
            "coalesce(max(submitted_ms), 0), coalesce(max(ended_ms), 0)) FROM tasks"
        ).fetchone()
        return int(shift_ms), int(seen_ms)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path names; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is corrupt."""
    return "malformed" in str(error) or "not a database" in str(error)


def _outcome_of(op: Op, database: Database) -> Any:
    try:
        return op(database)
    except LaxityError as error:
        # Its traceback leads to the frame with all answers, and so to the results among them.
        return error.with_traceback(None)


def _as_answer(error: Exception) -> LaxityError:
    if isinstance(error, sqlite3.Error) and "full" in str(error):
        return Overloaded(f"there is no room to store it: {error}", {"limit": "disk"})
    text = f"the store of durable tasks does not work: {told(error)}"
    return Unavailable(text, {"durable": False})


def told(error: Exception) -> str:
    """An error in words; one that nobody foresaw also with its kind."""
    return str(error) if isinstance(error, sqlite3.Error | OSError) else repr(error)
