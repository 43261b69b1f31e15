"""What is on disk: acknowledged is kept, one outcome each, whatever becomes of files and disks."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import weakref
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.core.outcomes import Outcome
from scheduler.durable.database import FILE, Damaged, Database
from scheduler.durable.records import Asked, Bounds, Content, Ended, NewTask
from scheduler.durable.store import open_database
from scheduler.errors import LaxityError, Overloaded, TaskConflict, TaskNotFound, Unavailable

BIG = 10**9


def task(number: int, size: int = 16, **rest: Any) -> NewTask:
    body = memoryview(bytes([number % 256]) * size)
    specs = [["x", "uint8", [size]]]
    content = Content("m", None, specs, body, False, 3, Asked("m", None, 3, specs, body))
    fields = {"tenant": "a", "id": f"t{number}", "content": content, "submitted_ms": 1_000}
    limits = {"deadline_ms": 2_000, "tenant_tasks": BIG, "tenant_bytes": BIG}
    return NewTask(**{**fields, **limits, **rest})


def completed(seq: int, at_ms: int = 1_500, body: bytes = b"out") -> Ended:
    return Ended(seq, Outcome.COMPLETED, "in time", at_ms, {"target": "cpu:0"}, memoryview(body))


def add(database: Database, *tasks: NewTask) -> list[Any]:
    """Commits them together; what came of each."""
    return database.commit([partial(Database.add, task=each) for each in tasks])


def ids(database: Database) -> set[str]:
    return {kept.id for kept in database.waiting()}


@pytest.fixture
def database(tmp_path: Path):
    made = Database(tmp_path / FILE, Bounds())
    yield made
    made.close()


def test_a_task_is_kept_with_all_that_it_is(database: Database, tmp_path: Path) -> None:
    ((seq, is_new),) = add(database, task(1))
    assert database._sql.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database._sql.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    database.close()
    again = Database(tmp_path / FILE, Bounds())
    (kept,) = again.waiting()
    assert is_new
    assert (kept.seq, kept.tenant, kept.id, kept.kind.model) == (seq, "a", "t1", "m")
    assert kept.kind.shapes == ((16,),)
    assert (kept.bytes, kept.submitted_ms, kept.deadline_ms) == (16, 1_000, 2_000)
    assert again.inputs([seq, 99]) == {seq: ([["x", "uint8", [16]]], b"\1" * 16)}
    assert again.use() == (1, 16)
    again.close()


def test_tensors_are_for_the_daemons_user_alone_in_a_folder_that_all_may_enter(
    database: Database, tmp_path: Path
) -> None:
    add(database, task(1))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys((FILE, f"{FILE}-shm", f"{FILE}-wal"), 0o600)


def test_the_same_id_is_the_same_task_or_an_error(database: Database) -> None:
    ((seq, _),) = add(database, task(1))
    other = task(2, id="t1")
    found = add(database, task(1), other, task(1, tenant="b"))
    assert found[0] == (seq, False)
    assert isinstance(found[1], TaskConflict)
    assert found[2] == (seq + 1, True)
    assert database.counts("a") == {"waiting": 1}


def test_a_task_has_one_outcome_and_its_result_comes_with_it(database: Database) -> None:
    ((seq, _),) = add(database, task(1))
    cancelled = Ended(seq, Outcome.CANCELLED, "", 1_600)
    ends = [completed(seq), cancelled, completed(99)]
    found = database.commit([partial(Database.end, ended=end) for end in ends])
    assert found == [True, False, False]
    kept = database.kept("a", "t1")
    assert kept is not None
    assert kept.outcome is Outcome.COMPLETED
    assert database.result(seq) == ({"target": "cpu:0"}, b"out")
    assert database.inputs([seq]) == {}
    assert database.use() == (1, 3)


def test_expired_results_leave_and_their_numbers_are_not_used_again(database: Database) -> None:
    found = add(database, task(1), task(2), task(3))
    for seq, _ in found[:2]:
        database.commit([partial(Database.end, ended=completed(seq, at_ms=1_000 * seq))])
    assert database.commit([lambda db: db.purge(1_500)]) == [1]
    assert database.commit([lambda db: db.purge(9_000)]) == [1]
    assert database.kept("a", "t1") is None
    assert ids(database) == {"t3"}
    assert database.use() == (1, 16)
    assert add(database, task(1)) == [(found[2][0] + 1, True)]


def test_a_look_up_that_finds_nothing_keeps_no_result_of_the_others(database: Database) -> None:
    def fails(_: Database) -> None:
        raise TaskNotFound("no such task")

    gc.disable()
    try:
        found = database.look([lambda _: np.zeros(4), fails])
        kept = weakref.ref(found[0])
        assert isinstance(found[1], TaskNotFound)
        del found
        assert kept() is None
    finally:
        gc.enable()


def test_limits_of_the_box_and_of_a_tenant_hold(tmp_path: Path) -> None:
    database = Database(tmp_path / FILE, Bounds(tasks=3, bytes=100))
    first, second = add(database, task(1), task(2, 90))
    assert not isinstance(first, Overloaded)
    assert isinstance(second, Overloaded)
    assert "bytes (durable.max_mb)" in str(second)
    (found,) = add(database, task(3, tenant_tasks=1))
    assert "'a' may keep 1 tasks" in str(found)
    (found,) = add(database, task(3, tenant_bytes=20))
    assert found.detail == {"tenant": "a", "limit": "bytes"}
    assert add(database, task(1, tenant_tasks=1)) == [(1, False)]
    add(database, task(3), task(4, tenant="b"))
    (found,) = add(database, task(5, tenant="b"))
    assert "3 tasks are kept already (durable.max_tasks)" in str(found)
    assert "ended ones for durable.keep_results_s" in str(found)
    database.close()


def test_lists_are_the_newest_first_and_of_one_tenant(database: Database) -> None:
    add(database, *map(task, range(5)), task(9, tenant="b"))
    listed = database.listed("a", 2, None)
    assert [kept.id for kept in listed] == ["t4", "t3"]
    assert [kept.id for kept in database.listed("a", 9, listed[-1].seq)] == ["t2", "t1", "t0"]


def test_a_full_disk_refuses_what_is_new_and_keeps_what_is_there(tmp_path: Path) -> None:
    database = Database(tmp_path / FILE, Bounds(disk_bytes=400_000))
    found = add(database, *[task(number, 10_000) for number in range(60)])
    kept = [each for each in found if not isinstance(each, LaxityError)]
    refused = [each for each in found if isinstance(each, LaxityError)]
    assert 10 < len(kept) < 60
    assert {type(each) for each in refused} == {Overloaded}
    assert "full" in str(refused[0])
    assert len(ids(database)) == len(kept) == database.use()[0]
    # Its inputs leave in the same transaction, so there is room for the end of every one.
    ends = [partial(Database.end, ended=completed(seq, body=b"y" * 9_000)) for seq, _ in kept]
    assert database.commit(ends) == [True] * len(kept)
    database.close()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_what_would_be_written_to_a_file_that_is_gone_is_refused(
    database: Database, tmp_path: Path, how: str
) -> None:
    add(database, task(1))
    away = (tmp_path / FILE).rename(tmp_path / "away")
    if how == "replaced":
        shutil.copy(away, tmp_path / FILE)
    for found in add(database, task(2), task(3)):
        assert isinstance(found, Unavailable)
        assert found.detail == {"durable": False}
        assert "has been removed or replaced; restart the box" in str(found)
    away.rename(tmp_path / FILE)
    assert [is_new for _, is_new in add(database, task(2), task(3))] == [True, True]


def test_what_stumbles_halfway_has_not_happened(database: Database) -> None:
    add(database, task(1), task(2))

    def stumbles(database: Database) -> None:
        database.end(completed(1))
        raise KeyError("x")

    found = database.commit([stumbles, partial(Database.end, ended=completed(2))])
    assert isinstance(found[0], Unavailable)
    assert found[1] is True
    assert ids(database) == {"t1"}
    assert database.use() == (2, 16 + len(b"out"))


def test_a_torn_log_ends_with_the_last_whole_transaction(tmp_path: Path) -> None:
    database = Database(tmp_path / FILE, Bounds())
    wal = tmp_path / (FILE + "-wal")
    sizes = []
    for number in range(12):
        add(database, task(number, 3_000), task(100 + number))
        sizes.append(wal.stat().st_size)
    for cut in [0, 31, *range(1_000, sizes[-1], 9_777), *sizes, *(size - 1 for size in sizes)]:
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir(exist_ok=True)
        shutil.copy(tmp_path / FILE, copy)
        (copy / (FILE + "-wal")).write_bytes(wal.read_bytes()[:cut])
        torn, problem = open_database(copy / FILE, Bounds())
        whole = sum(size <= cut for size in sizes)
        wanted = {f"t{base + number}" for number in range(whole) for base in (0, 100)}
        assert problem is None
        if cut >= sizes[0]:
            assert ids(torn) == wanted
        assert add(torn, task(777))[0][1]
        torn.close()
    database.close()


@pytest.mark.parametrize("place", [0, 5_000, "middle"])
def test_a_damaged_file_is_moved_aside_and_said(tmp_path: Path, place: int | str) -> None:
    path = tmp_path / FILE
    database = Database(path, Bounds())
    add(database, *[task(number, 500) for number in range(200)])
    database.close()
    data = bytearray(path.read_bytes())
    at = len(data) // 2 if isinstance(place, str) else place
    data[at : at + 3_000] = bytes(range(256)) * 12
    path.write_bytes(data)
    with pytest.raises(Damaged):
        Database(path, Bounds())
    fresh, problem = open_database(path, Bounds())
    assert ids(fresh) == set()
    assert problem is not None
    assert "is damaged" in problem
    assert "\n" not in problem
    (aside,) = tmp_path.glob(f"{FILE}.damaged-*")
    assert str(aside) in problem
    assert aside.stat().st_size == len(data)
    fresh.close()


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    Database(tmp_path / FILE, Bounds()).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as raw, raw:
        raw.execute("PRAGMA user_version = 9")
    raw.close()
    with pytest.raises(sqlite3.NotSupportedError, match="format 9, not 2"):
        open_database(tmp_path / FILE, Bounds())
    assert list(tmp_path.glob("*.damaged*")) == []


def test_the_clock_is_as_far_as_the_latest_time_on_disk(database: Database) -> None:
    assert database.clock() == (0, 0)
    add(database, task(1), task(2))
    assert database.clock() == (0, 1_000)
    database.commit([partial(Database.end, ended=completed(1)), lambda db: db.note_time(1_200)])
    assert database.clock() == (0, 1_500)
    database.commit([lambda db: db.note_time(1_800), lambda db: db.shift_clock(-9)])
    assert database.clock() == (-9, 1_800)
