"""The counter of durable tasks: messages in, answers out, with the real store and driver."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import resource
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.driver import Driver
from scheduler.durable import desk as desk_module
from scheduler.durable import store as store_module
from scheduler.durable.asker import Asker
from scheduler.durable.clock import TaskClock
from scheduler.durable.database import FILE, Damaged, Database, Op
from scheduler.durable.desk import TaskDesk
from scheduler.durable.records import Bounds, Ended, KeptTask, NewTask
from scheduler.errors import Forbidden, InvalidInput, LaxityError, ModelNotFound, Unavailable
from scheduler.ingress.admission import Admission
from scheduler.ingress.task_door import TaskDoor
from scheduler.tenants import OWNER, Tenant
from scheduler.wire import Header, pack_tensors
from tests.waiting import eventually
from workers.link import ModelCard

S = 10**9
X = np.array([1.0, 2.0], np.float32)
CAMERA = Tenant(name="camera", models=("m",), scopes=("infer", "tasks"), queue_share=0.5)
SIGNATURE = Signature(
    (TensorSpec("x", "float32", (2,)), TensorSpec("z", "float32", (2,))),
    (TensorSpec("y", "float32", (2,)),),
    True,
)


class Clocks:
    """A wall clock that a test sets, and one that only runs forward."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * S
        self.boot_ns = 5_000 * S

    def pass_s(self, seconds: float) -> None:
        self.wall_ns += int(seconds * S)
        self.boot_ns += int(seconds * S)

    def clock(self) -> TaskClock:
        return TaskClock(lambda: self.wall_ns, lambda: self.boot_ns)


class Counter:
    """A desk and its door, without a worker: nothing ever runs."""

    def __init__(self, folder: Path, bounds: Bounds = Bounds(), clocks: Clocks | None = None):  # noqa: B008
        self.driver = Driver()
        card = ModelCard("m", "", SIGNATURE, ("v",), 8)
        self.driver.catalog.learn("cpu:0", [card], [])
        self.admission = Admission(self.driver, 3600 * S)
        self.clocks = clocks or Clocks()
        self.desk = TaskDesk(
            self.driver, folder, bounds, self.admission.is_loaded, self.clocks.clock()
        )
        self.door = TaskDoor(self.desk, self.admission, bounds, 30 * 86400 * S)

    async def ask(self, kind: str, tenant: Tenant = OWNER, **fields: Any) -> Any:
        """The value of the reply to a message, or its error."""
        answer: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        body = fields.pop("body", None)
        header = {"t": kind, "id": 1, **fields}
        try:
            self.door.take(header, body, tenant, lambda said, *_: answer.set_result(said), Asker())
        except LaxityError as error:
            return error
        said = await asyncio.wait_for(answer, 30)
        return said["value"] if said["t"] == "reply" else said

    async def submit(self, task: str, tenant: Tenant = OWNER, **fields: Any) -> Any:
        """What came of a submission."""
        tensors = fields.pop("tensors", {"x": X, "z": X})
        specs, buffers = pack_tensors(tensors)
        body = memoryview(b"".join(buffers))
        asked = {"model": "m", "in": specs, "budget_ns": 3600 * S, "task": task, **fields}
        return await self.ask("task", tenant, body=body, **asked)

    async def left_s(self, task: str) -> float:
        """What a task has left to its deadline."""
        return float((await self.ask("task_status", task=task))["left_ms"]) / 1e3

    async def close(self) -> None:
        self.desk.stop()
        await self.desk.close()


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def run_without_collector(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it, so that only what nothing refers to is freed."""
    gc.disable()
    try:
        run(scene)
    finally:
        gc.enable()


def test_an_id_is_a_task_of_one_tenant_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        assert await counter.submit("t") == {"task": "t", "new": True}
        assert await counter.submit("t") == {"task": "t", "new": False}
        assert await counter.submit("t", tensors={"z": X, "x": X}) == {"task": "t", "new": False}
        for other in ({"tensors": {"x": X, "z": X + 1}}, {"priority": 5}, {"variant": "v"}):
            assert (await counter.submit("t", **other))["code"] == "task_conflict"
        assert await counter.submit("t", CAMERA) == {"task": "t", "new": True}
        made = await counter.submit(None)  # type: ignore[arg-type]
        assert len(made["task"]) == 32
        listed = await counter.ask("tasks", CAMERA)
        assert [task["task"] for task in listed["tasks"]] == ["t"]
        assert listed["counts"] == {"waiting": 1}
        assert await counter.ask("task_cancel", CAMERA, task="t") == {
            "task": "t",
            "cancelled": True,
        }
        assert (await counter.ask("task_status", CAMERA, task="t"))["outcome"] == "cancelled"
        assert (await counter.ask("task_status", task="t"))["outcome"] is None
        unknown = await counter.ask("task_status", CAMERA, task=made["task"])
        assert unknown["code"] == "task_not_found"
        await counter.close()

    run(scene)


def test_the_tensors_of_a_refused_task_are_not_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        x = np.ones(2, np.float32)
        kept = weakref.ref(x)
        asked: dict[str, Any] = {"model": "m", "in": [["x", "float32", [2]]], "budget_ns": S}
        answer = await counter.ask("task", body=x.data.cast("B"), task="t", **asked)
        assert answer["code"] == "invalid_input"
        del x
        await counter.ask("task_cancel", task="t")  # the store's thread is done with the first
        assert kept() is None
        await counter.close()

    run_without_collector(scene)


def test_the_tensors_of_a_task_are_not_kept_once_they_are_on_disk(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        x = np.zeros(18, np.float32)  # both inputs, the second at a multiple of 64 bytes
        kept = weakref.ref(x)
        specs = [["x", "float32", [2]], ["z", "float32", [2]]]
        asked: dict[str, Any] = {"model": "m", "in": specs, "budget_ns": S}
        assert (await counter.ask("task", body=x.data.cast("B"), task="t", **asked))["new"]
        del x
        await asyncio.to_thread(eventually, lambda: kept() is None)
        await counter.close()

    run_without_collector(scene)


def test_what_a_tenant_may_not_do_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks", Bounds(tasks=4))
        assert isinstance(await counter.ask("tasks", count=251), InvalidInput)
        assert isinstance(await counter.ask("tasks", Tenant(name="x")), Forbidden)
        strict = Tenant(name="s", models=("other",), scopes=("tasks",))
        assert (await counter.submit("t", strict))["code"] == ModelNotFound.code
        assert (await counter.submit("t", budget_ns=31 * 86400 * S))["code"] == InvalidInput.code
        modest = Tenant(name="modest", scopes=("tasks",), max_priority=5)
        assert (await counter.submit("t", modest, priority=4))["code"] == Forbidden.code
        assert (await counter.submit("t", modest))["new"]
        assert (await counter.ask("task_status", modest, task="t"))["priority"] == 5
        assert (await counter.submit("t", weight=2.0))["code"] == InvalidInput.code
        for bad in ("", "x" * 129, "a\nb", 7):
            assert isinstance(await counter.submit(bad), InvalidInput)  # type: ignore[arg-type]
        assert [(await counter.submit(f"t{n}", CAMERA)).get("code") for n in range(3)] == [
            None,
            None,
            "overloaded",
        ]
        counter.admission.unload("m")
        assert (await counter.submit("t9"))["code"] == "unavailable"
        # What was accepted while it was loaded is still known.
        assert await counter.submit("t1", CAMERA) == {"task": "t1", "new": False}
        await counter.close()

    run(scene)


def test_many_submissions_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    commit = Database.commit

    def counted(database: Database, ops: Sequence[Op]) -> list[Any]:
        commits.append(len(ops))
        return commit(database, ops)

    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        await counter.submit("first")
        commits.clear()
        answers = await asyncio.gather(*(counter.submit(f"t{n}") for n in range(500)))
        assert all(answer["new"] for answer in answers)
        assert (await counter.ask("tasks", count=0))["counts"] == {"waiting": 501}
        await counter.close()

    monkeypatch.setattr(Database, "commit", counted)
    run(scene)
    assert sum(commits) >= 500
    assert len(commits) < 100


def test_a_wait_ends_with_the_task_or_with_its_time(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        await counter.submit("t")
        described = await counter.ask("task_result", task="t", wait_ns=10_000_000)
        assert described["state"] == "waiting"
        waiting = [
            asyncio.create_task(counter.ask("task_result", task="t", wait_ns=30 * S))
            for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        await counter.ask("task_cancel", task="t")
        assert [(await each)["code"] for each in waiting] == ["cancelled"] * 3
        again = await counter.ask("task_cancel", task="t")
        assert again == {"task": "t", "cancelled": False}
        waits = counter.desk._waits
        assert (waits._waiters, waits._held._held) == ({}, {})
        await counter.close()

    run(scene)


def test_a_task_that_is_forgotten_is_gone_with_its_result_and_makes_room(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks", Bounds(tasks=3))
        for id_ in ("waits", "ended"):
            await counter.submit(id_)
        await counter.submit("waits", CAMERA)
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        result = Ended(2, Outcome.COMPLETED, "", 0, {"out": []}, memoryview(b"12345678"))
        counter.desk._store.write(lambda db: db.end(result), ended.set_result)
        assert await ended
        asked = counter.ask("task_result", task="waits", wait_ns=30 * S)
        waiter = asyncio.create_task(asked)
        await asyncio.sleep(0.05)
        assert (await counter.submit("more"))["detail"] == {"limit": "tasks"}
        for id_ in ("waits", "ended"):
            assert await counter.ask("task_forget", task=id_) == {"task": id_, "forgotten": True}
            assert await counter.ask("task_forget", task=id_) == {"task": id_, "forgotten": False}
            assert (await counter.ask("task_result", task=id_))["code"] == "task_not_found"
        assert (await waiter)["code"] == "task_not_found"
        listed = await counter.ask("tasks", CAMERA)
        assert (listed["counts"], listed["waiting"]) == ({"waiting": 1}, 1), "another's is kept"
        assert await counter.submit("ended") == {"task": "ended", "new": True}
        assert await counter.submit("more") == {"task": "more", "new": True}
        await counter.close()
        with closing(sqlite3.connect(tmp_path / "tasks" / FILE)) as raw:
            assert raw.execute("SELECT count(*) FROM inputs").fetchone() == (3,)
            assert raw.execute("SELECT count(*) FROM outputs").fetchone() == (0,)

    run(scene)


def test_too_many_that_wait_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        await counter.submit("t")
        first = asyncio.create_task(counter.ask("task_result", task="t", wait_ns=30 * S))
        while not counter.desk._waits._waiters:
            await asyncio.sleep(0.01)
        refused = await counter.ask("task_result", task="t", wait_ns=S)
        assert (refused["code"], refused["detail"]) == ("overloaded", {"limit": "waits"})
        assert (await counter.ask("task_result", task="t"))["state"] == "waiting"
        await counter.ask("task_cancel", task="t")
        assert (await first)["code"] == "cancelled"
        await counter.close()

    monkeypatch.setattr("scheduler.durable.waits.MOST_WAITS", 1)
    run(scene)


def test_who_waits_for_a_task_that_could_not_be_read_at_the_start_seldom_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    kept = Database.kept

    def fail(_database: Database) -> list[KeptTask]:
        raise sqlite3.DatabaseError("database disk image is malformed")

    def counted(database: Database, tenant: str, id_: str) -> KeptTask | None:
        looks.append(id_)
        return kept(database, tenant, id_)

    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        await counter.submit("t")
        await counter.close()
        monkeypatch.setattr(Database, "waiting", fail)
        monkeypatch.setattr(Database, "kept", counted)
        again = Counter(tmp_path / "tasks")
        told = await again.ask("task_result", task="t", wait_ns=S // 2)
        assert (told["state"], again.desk.status()["waiting"]) == ("waiting", 0)
        await again.close()

    run(scene)
    assert 2 <= len(looks) <= 10


def test_deadlines_outlive_restarts_and_clocks_that_are_set(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    clocks = Clocks()

    async def first() -> None:
        counter = Counter(folder, clocks=clocks)
        await counter.submit("t", budget_ns=1000 * S)
        clocks.pass_s(100)
        assert await counter.left_s("t") == 900
        clocks.wall_ns += 10**9 * S  # somebody sets the clock: 31 years ahead
        assert await counter.left_s("t") == 900
        counter.desk._housekeep()
        assert await counter.left_s("t") == 900
        await counter.submit("u")
        status = await counter.ask("task_status", task="u")
        assert status["submitted_unix_ms"] == clocks.wall_ns // 10**6
        status = await counter.ask("task_status", task="t")
        assert status["submitted_unix_ms"] == clocks.wall_ns // 10**6 - 100_000
        await counter.close()

    async def second() -> None:
        counter = Counter(folder, clocks=clocks)
        clocks.pass_s(100)
        assert await counter.left_s("t") == 800
        counter.desk._housekeep()
        await counter.close()

    async def third() -> None:
        clocks.wall_ns -= 20 * 365 * 86400 * S  # a box without a battery for its clock starts
        clocks.boot_ns = 7 * S
        counter = Counter(folder, clocks=clocks)
        assert await counter.left_s("t") == 800
        counter.desk._housekeep()  # takes the clock as it is now, and moves the deadlines along
        clocks.wall_ns += 20 * 365 * 86400 * S  # NTP
        counter.desk._housekeep()
        assert await counter.left_s("t") == 800
        clocks.pass_s(801)
        assert await counter.left_s("t") == -1
        await counter.close()

    run(first)
    run(second)
    run(third)


@pytest.mark.parametrize("step_s", [86_400, -86_400])
@pytest.mark.parametrize("looks", [1, 2])
def test_a_clock_that_cannot_be_followed_on_disk_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int, looks: int
) -> None:
    clocks = Clocks()
    bounds = Bounds(keep_results_ms=3_600_000)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def first() -> None:
        counter = Counter(tmp_path, bounds, clocks)
        await counter.submit("ended")
        await counter.ask("task_cancel", task="ended")
        await counter.submit("t", budget_ns=600 * S)
        clocks.wall_ns += step_s * S
        with monkeypatch.context() as patch:
            patch.setattr(Database, "shift_clock", full)
            for _ in range(looks):
                counter.desk._housekeep()
            await counter.submit("u")
        counter.desk._housekeep()
        await counter.submit("v")
        counter.desk._housekeep()
        await counter.close()

    async def second() -> None:
        counter = Counter(tmp_path, bounds, clocks)
        assert (await counter.ask("task_status", task="ended"))["outcome"] == "cancelled"
        assert [await counter.left_s(task) for task in "tuv"] == [600, 3600, 3600]
        await counter.close()

    run(first)
    run(second)


def test_the_wait_for_a_store_that_opens_counts_against_a_deadline(tmp_path: Path) -> None:
    async def scene() -> None:
        with open(tmp_path / "lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            counter = Counter(tmp_path)
            submitted = asyncio.ensure_future(counter.submit("t", budget_ns=60 * S))
            await asyncio.sleep(0)
            counter.clocks.pass_s(8)
        await submitted
        assert await counter.left_s("t") == 52
        await counter.close()

    run(scene)


def test_a_task_expires_though_the_box_has_slept(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        await counter.submit("t", budget_ns=600 * S)
        counter.clocks.pass_s(3 * 3600)  # of which the loop's timers know nothing
        counter.desk._housekeep()
        answer = await counter.ask("task_result", task="t", wait_ns=20 * S)
        assert answer["code"] == "expired"
        await counter.close()

    run(scene)


def test_results_are_kept_for_their_time(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks", Bounds(keep_results_ms=60_000))
        for number in range(3):
            await counter.submit(f"t{number}")
        await counter.ask("task_cancel", task="t0")
        counter.clocks.pass_s(40)
        await counter.ask("task_cancel", task="t1")
        counter.clocks.pass_s(40)
        counter.desk._housekeep()
        await counter.submit("t3")
        listed = await counter.ask("tasks")
        assert [task["task"] for task in listed["tasks"]] == ["t3", "t2", "t1"]
        await counter.close()

    run(scene)


def test_a_file_that_may_not_grow_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path / "tasks")
        await counter.submit("before")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = (tmp_path / "tasks" / f"{FILE}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5_000, hard))
        try:
            answers = [await counter.submit(f"t{number}") for number in range(4)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        refused = [answer["code"] for answer in answers if "code" in answer]
        assert refused
        assert set(refused) <= {"unavailable", "overloaded"}
        kept = [answer["task"] for answer in answers if "code" not in answer]
        after = await counter.submit("after")
        assert after == {"task": "after", "new": True}
        listed = await counter.ask("tasks")
        names = {task["task"] for task in listed["tasks"]}
        assert names == {"before", "after", *kept}
        await counter.close()

    run(scene)


def test_a_store_that_cannot_be_opened_says_so_and_stays_as_it_is(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "tasks").write_text("not a folder")
        counter = Counter(tmp_path / "tasks")
        answer = await counter.submit("t")
        assert answer["code"] == "unavailable"
        assert answer["detail"] == {"durable": False}
        assert "until the cause is mended" in str(answer)
        problem = counter.desk.status()["problem"]
        assert problem is not None
        assert "tasks" in problem
        assert problem.endswith("durable tasks are refused until that is mended")
        await counter.close()

    with structlog.testing.capture_logs() as logs:
        run(scene)
    assert logs[0]["event"] == "no durable tasks"
    assert [log["event"] for log in logs].count("no durable tasks") == 1
    assert (tmp_path / "tasks").read_text() == "not a folder"


def test_a_store_that_cannot_be_opened_is_told_of_in_the_status_no_later_than_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Log:
        def error(self, event: str, **_: Any) -> None:
            if event == "no durable tasks":
                told.append(made[0].problem)

    class Made(store_module.Store):
        def __init__(self, *arguments: Any) -> None:
            made.append(self)
            super().__init__(*arguments)

    async def scene() -> None:
        (tmp_path / "tasks").write_text("not a folder")
        counter = Counter(tmp_path / "tasks")
        assert (await counter.submit("t"))["code"] == "unavailable"
        await counter.close()

    made: list[store_module.Store] = []
    monkeypatch.setattr(store_module, "log", Log())
    monkeypatch.setattr(desk_module, "Store", Made)
    run(scene)
    assert ["tasks are refused until" in each for each in told] == [True]


def test_a_store_that_can_be_opened_after_all_goes_on_with_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that was full when the box started."""
    monkeypatch.setattr(desk_module, "OPEN_AGAIN_S", 0.01)
    folder, away = tmp_path / "tasks", tmp_path / "away"

    async def scene() -> None:
        before = Counter(folder)
        await before.submit("kept")
        await before.close()
        folder.rename(away)
        folder.write_text("not a folder")
        counter = Counter(folder)
        for _ in range(3):
            assert (await counter.submit("t"))["code"] == "unavailable"
            await asyncio.sleep(0.02)
        folder.unlink()
        away.rename(folder)
        while (await counter.submit("t")).get("code") == "unavailable":
            await asyncio.sleep(0.01)
        status = counter.desk.status()
        assert (status["problem"], status["waiting"]) == (None, 2)
        assert await counter.left_s("kept") == pytest.approx(3600, abs=60)
        await counter.close()

    with structlog.testing.capture_logs() as logs:
        run(scene)
    told = [log["event"] for log in logs]
    assert told.count("no durable tasks") == 1
    assert sorted(told[-2:]) == ["durable tasks are taken again", "durable tasks wait"]


def test_a_store_that_opens_but_fails_at_first_is_not_held_by_its_own_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "OPEN_AGAIN_S", 0.01)
    monkeypatch.setattr(store_module, "LOCK_S", 0.1)
    folder, clock, failed = tmp_path / "tasks", Database.clock, list[bool]()

    def fails_once(database: Database) -> tuple[int, int]:
        if not failed:
            failed.append(True)
            raise sqlite3.OperationalError("disk I/O error")
        return clock(database)

    async def scene() -> None:
        folder.write_text("not a folder")
        counter = Counter(folder)
        assert (await counter.submit("t"))["code"] == "unavailable"
        folder.unlink()
        while (await counter.submit("t")).get("code") == "unavailable":
            await asyncio.sleep(0.01)
        await counter.close()

    monkeypatch.setattr(Database, "clock", fails_once)
    with structlog.testing.capture_logs() as logs:
        run(scene)
    assert failed
    assert not [each for each in logs if "another process" in str(each)]


@pytest.mark.parametrize("opening", ["writer", "reader"])
def test_a_store_that_fails_to_open_in_an_unforeseen_way_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    made = Database.__init__

    def fails(database: Database, path: Path, bounds: Bounds, reading: bool = False) -> None:
        if reading == (opening == "reader"):
            raise TypeError("what?")
        made(database, path, bounds, reading)

    async def scene() -> None:
        counter = Counter(tmp_path)
        asks = (counter.ask("tasks"), counter.ask("task_status", task="t"))
        for ask in (*asks, counter.submit("t")) if opening == "writer" else asks:
            answer = await ask
            assert (answer["code"], answer["detail"]) == ("unavailable", {"durable": False})
            assert "TypeError('what?')" in answer["message"]
        assert "TypeError('what?')" in counter.desk.status()["problem"]
        await counter.close()

    monkeypatch.setattr(Database, "__init__", fails)
    run(scene)


def test_what_keeps_tasks_from_being_read_is_told_though_they_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the thread goes on that has let the other one open the database."""
    made, put = Database.__init__, threading.Event.set

    def fails(database: Database, path: Path, bounds: Bounds, reading: bool = False) -> None:
        if reading:
            raise TypeError("what?")
        made(database, path, bounds, reading)

    def held_up(event: threading.Event) -> None:
        put(event)
        if sys._getframe(1).f_code.co_name == "_open":
            time.sleep(0.1)

    async def scene() -> None:
        counter = Counter(tmp_path)
        assert "TypeError('what?')" in (await counter.ask("tasks"))["message"]
        assert (await counter.submit("t"))["new"]
        assert "TypeError('what?')" in counter.desk.status()["problem"]
        await counter.close()

    monkeypatch.setattr(Database, "__init__", fails)
    monkeypatch.setattr(threading.Event, "set", held_up)
    run(scene)


def test_a_store_is_called_well_once_it_takes_tasks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "OPEN_AGAIN_S", 0.01)
    folder, clock = tmp_path / "tasks", Database.clock

    def slow(database: Database) -> tuple[int, int]:
        time.sleep(0.1)
        return clock(database)

    async def scene() -> None:
        folder.write_text("not a folder")
        counter = Counter(folder)
        while counter.desk.status()["problem"] is None:
            await asyncio.sleep(0.001)
        folder.unlink()
        while counter.desk.status()["problem"] is not None:
            await asyncio.sleep(0.001)
        assert (await counter.submit("t")).get("new")
        await counter.close()

    monkeypatch.setattr(Database, "clock", slow)
    run(scene)


def test_a_store_of_another_process_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        holder = Counter(tmp_path)
        assert (await holder.submit("t"))["new"]
        monkeypatch.setattr("scheduler.durable.store.LOCK_S", 0.0)
        counter = Counter(tmp_path)
        looks: list[dict[str, Any]] = [
            {"kind": "task_result", "task": "t", "wait_ns": S},
            {"kind": "task_status", "task": "t"},
            {"kind": "tasks"},
        ]
        for look in looks:
            answer = await counter.ask(**look)
            assert answer["code"] == "unavailable"
            assert "another process" in answer["message"]
        await counter.close()
        await holder.close()

    run(scene)


@pytest.mark.parametrize("specs", [b"\xc1", b"\x93\x01\x02\x03", b""], ids=range(3))
def test_one_damaged_task_costs_no_other(tmp_path: Path, specs: bytes) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        for id_ in "abc":
            await counter.submit(id_)
        await counter.close()
        with closing(sqlite3.connect(tmp_path / FILE)) as raw, raw:
            raw.execute("UPDATE tasks SET specs = ? WHERE id = 'b'", (specs,))
        raw.close()
        counter = Counter(tmp_path)
        listed = await counter.ask("tasks")
        assert [task["task"] for task in listed["tasks"]] == ["c", "b", "a"]
        assert listed["waiting"] == 3
        read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        counter.desk._store.read(lambda db: db.inputs([1, 2, 3]), read.set_result)
        found = await read
        assert [seq for seq in (1, 2, 3) if found[seq] is None] == [2]
        assert (await counter.ask("task_cancel", task="b"))["cancelled"]
        await counter.close()

    run(scene)


def test_a_task_that_is_cancelled_while_its_inputs_are_read_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        for id_ in "ab":
            await counter.submit(id_)
        feeder, store = counter.desk._feeder, counter.desk._store
        with structlog.testing.capture_logs() as said:
            read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            ended = Ended(1, Outcome.CANCELLED, "", 0)  # on disk; the feeder has not heard of it
            store.write(lambda db: db.end(ended), read.set_result)
            assert await read
            feeder._inputs.fetch(list(feeder.tasks.values()))
            fetched: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            store.read(lambda db: None, fetched.set_result)
            await fetched
        assert said == []
        assert [task.inputs is None for task in feeder.tasks.values()] == [True, False]
        await counter.close()

    run(scene)


def test_one_damaged_text_costs_no_other_task(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        for id_ in "abcde":
            await counter.submit(id_)
        await counter.close()
        columns = {"b": "model", "c": "variant", "d": "reason", "e": "tenant"}
        with closing(sqlite3.connect(tmp_path / FILE)) as raw, raw:
            for id_, column in columns.items():
                raw.execute(f"UPDATE tasks SET {column} = CAST(x'6dff' AS TEXT) WHERE id = ?", id_)
        counter = Counter(tmp_path)
        listed = await counter.ask("tasks")
        assert [task["task"] for task in listed["tasks"]] == ["d", "c", "b", "a"]
        assert (listed["waiting"], listed["problem"]) == (5, None)
        assert await counter.submit("f") == {"task": "f", "new": True}
        await counter.close()

    run(scene)


@pytest.mark.parametrize("header", [b"\x07", b"\xc1", b""], ids=range(3))
def test_one_damaged_result_costs_no_other_task(tmp_path: Path, header: bytes) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        for id_ in "abc":
            await counter.submit(id_)
        for seq in (1, 2, 3):
            stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            ended = Ended(seq, Outcome.COMPLETED, "", 0, {"out": []}, memoryview(b""))
            counter.desk._store.write(partial(Database.end, ended=ended), stored.set_result)
            assert await stored
        await counter.close()
        with closing(sqlite3.connect(tmp_path / FILE)) as raw, raw:
            raw.execute("UPDATE outputs SET header = ? WHERE seq = 1", (header,))
        raw.close()
        counter = Counter(tmp_path)
        first, *others = await asyncio.gather(
            *[counter.ask("task_result", task=id_, wait_ns=S) for id_ in "abc"]
        )
        assert (first["code"], first["message"]) == ("unavailable", "its result is damaged on disk")
        assert [each["t"] for each in others] == ["result", "result"]
        await counter.close()

    run(scene)


def test_a_caller_that_can_not_be_answered_costs_no_other_its_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        await counter.submit("a")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def fail(_: object) -> None:
            raise TypeError("such as an answer that can't be encoded")

        with structlog.testing.capture_logs() as said:
            counter.desk._store.read(lambda db: 1, fail)
            counter.desk._store.read(lambda db: 2, answer.set_result)
            assert await asyncio.wait_for(answer, 30) == 2
        assert [each["event"] for each in said] == ["an answer about a task failed"]
        await counter.close()

    run(scene)


def test_who_looks_after_the_box_hears_that_the_disk_takes_no_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(database: Database, task: NewTask) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def scene() -> None:
        counter = Counter(tmp_path)
        with monkeypatch.context() as full:
            full.setattr(Database, "add", fails)
            await counter.submit("b")
        told = counter.desk.status()["problem"]
        assert told == f"{tmp_path}: the last one was refused: there is no room to store it: " + (
            "database or disk is full"
        )
        await counter.submit("c")
        assert counter.desk.status()["problem"] is None
        await counter.close()

    run(scene)


@pytest.mark.parametrize("unreadable", ["waiting", "clock"])
def test_tasks_that_cannot_be_read_at_the_start_are_told_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    def fails(database: Database) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def scene() -> None:
        counter = Counter(tmp_path)
        await counter.submit("t")
        await counter.close()
        monkeypatch.setattr(Database, unreadable, fails)
        counter = Counter(tmp_path)
        assert "disk I/O error" in (await counter.ask("tasks"))["problem"]
        looks: list[str] = []
        look = Database.kept

        def counted(database: Database, tenant: str, id_: str) -> KeptTask | None:
            looks.append(id_)
            return look(database, tenant, id_)

        monkeypatch.setattr(Database, "kept", counted)
        waited = await counter.ask("task_result", task="t", wait_ns=S // 5)
        assert waited["state"] == "waiting"
        assert len(looks) <= 25
        await counter.close()

    run(scene)


def test_what_nobody_foresaw_is_an_answer_and_costs_no_other(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        store = counter.desk._store
        for ask in (store.write, store.read):
            for expected in (Unavailable, tuple):
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                op: Op = Database.use if expected is tuple else lambda _: int("x")
                ask(op, answer.set_result)
                assert isinstance(await asyncio.wait_for(answer, 30), expected)
        await counter.close()

    run(scene)


def test_a_damaged_store_is_told_to_who_asks(tmp_path: Path) -> None:
    async def scene() -> None:
        counter = Counter(tmp_path)
        await counter.submit("t")
        await counter.close()
        data = bytearray((tmp_path / FILE).read_bytes())
        data[:4096] = bytes(4096)
        (tmp_path / FILE).write_bytes(data)
        counter = Counter(tmp_path)
        listed = await counter.ask("tasks")
        assert "is damaged" in listed["problem"]
        assert listed["counts"] == {}
        assert (await counter.submit("t"))["new"]
        await counter.close()

    run(scene)


def test_a_disk_that_damages_each_new_store_is_told_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damages(database: Database) -> None:
        raise Damaged("*** in database main ***")

    async def scene() -> None:
        counter = Counter(tmp_path)
        assert (await counter.submit("t"))["code"] == "unavailable"
        problem = counter.desk.status()["problem"]
        refused = "durable tasks are refused until that is mended"
        assert problem == f"{tmp_path}: *** in database main ***; {refused}"
        await counter.close()

    monkeypatch.setattr(Database, "_prepare", damages)
    run(scene)
