"""Tasks run below all requests, wait for what is not there, and end once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import structlog

from policies import POLICIES
from scheduler.core.commands import Finish
from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature, TensorSpec
from scheduler.durable.database import Database
from scheduler.durable.feeder import ATTEMPTS
from scheduler.durable.records import Ended
from scheduler.durable.room import PART, SHARE, TRICKLE
from tests.core.world import offer
from tests.durable.virtual import World, play
from workers.link import ModelCard

WITHDRAWN = "withdrawn: a durable task, which can run later"


def test_waiting_tasks_run_in_batches_and_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        for number in range(20):
            world.task(number, deadline_s=1000 - number, priority=3 if number else 0)
        device = world.device()
        await world.until_ended(20)
        assert [size for _, size in device.batches] == [8, 8, 4]
        assert sorted(world.ended[:8]) == [1, *range(14, 21)]
        assert sorted(world.ended[8:16]) == [*range(6, 14)]
        kept = world.database.result(1)
        assert kept is not None
        header, body = kept
        assert (header["target"], header["batch"], header["out"]) == (
            "cpu:0",
            8,
            [["y", "uint8", [4]]],
        )
        assert body == b"out!"
        assert world.driver.background is None

    play(scene)


def test_a_batch_is_as_large_as_the_memory_for_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.durable.inputs.HELD_BYTES", 35)

    async def scene() -> None:
        world = World(tmp_path)
        for number in range(8):
            world.task(number, specs=[["x", "uint8", [10]]])
        world.task(8, model="large", specs=[["x", "uint8", [40]]])
        device = world.device("cpu:0", offer(), offer("large"))
        await world.until_ended(9)
        assert device.batches == [("m", 2)] * 4 + [("large", 1)]

    play(scene)


def test_a_task_waits_for_a_target_that_has_its_model(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.device()
        world.task(1, model="far")
        world.task(2)
        await world.until_ended(1)
        await asyncio.sleep(1800)
        assert (world.outcome(1), world.outcome(2)) == (None, "completed")
        world.device("cloud", offer("far"))
        await world.until_ended(2)
        assert world.outcome(1) == "completed"

    play(scene)


def test_a_task_that_finds_no_room_expires_at_its_deadline(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.task(1, deadline_s=3 * 86400)
        world.task(2, deadline_s=50)
        await asyncio.sleep(49)
        assert world.ended == []
        await asyncio.sleep(2)
        assert (world.outcome(2), world.ended) == ("expired", [2])
        await asyncio.sleep(3 * 86400 - 60)
        assert world.ended == [2]
        await world.until_ended(2)
        assert world.outcome(1) == "expired"

    play(scene)


def test_a_task_fails_after_its_attempts_which_are_remembered(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        device = world.device()
        device.broken = True
        world.task(1)
        while not (kept := world.database.kept("a", "t1")) or kept.attempts < 2:
            await asyncio.sleep(0.01)
        world.feeder.stop()
        world.begin()
        await world.until_ended(1)
        assert len(device.batches) == ATTEMPTS
        kept = world.database.kept("a", "t1")
        assert kept is not None
        assert (kept.outcome, kept.reason) == (Outcome.FAILED, "failed 3 times: it broke")
        assert kept.attempts == ATTEMPTS

    play(scene)


def test_tasks_from_before_a_model_changed_fail_and_mislead_no_others(tmp_path: Path) -> None:
    as_now = [["x", "int8", [4]], ["z", "int8", [4]]]
    before = [
        [["x", "uint8", [4]], ["z", "int8", [4]]],
        [["old", "int8", [4]], ["z", "int8", [4]]],
        [["z", "int8", [4]], ["x", "int8", [4]]],
        [["x", "int8", [1, 4]], ["z", "int8", [1, 4]]],
    ]

    async def scene() -> None:
        world = World(tmp_path)
        inputs = TensorSpec("x", "int8", (4,)), TensorSpec("z", "int8", (4,))
        card = ModelCard("m", "", Signature(inputs, (), True), ("v",), 8)
        world.driver.catalog.cards["m"] = card
        for number, specs in enumerate(before):
            world.task(number, specs=specs)
        for number in range(4, 8):
            world.task(number, specs=as_now)
        device = world.device()
        await world.until_ended(8)
        assert [world.outcome(number) for number in range(8)] == ["failed"] * 4 + ["completed"] * 4
        assert device.batches == [("m", 4)]
        kept = world.database.kept("a", "t0")
        assert kept is not None
        assert kept.reason == (
            "the model has changed since: input 'x' of model 'm' is int8, not uint8"
        )

    play(scene)


@pytest.mark.parametrize("policy", ["window", "deferred", "goodput"])
def test_what_is_not_dispatched_makes_way_for_a_request(tmp_path: Path, policy: str) -> None:
    async def scene() -> None:
        world = World(tmp_path, policy)
        device = world.device("cpu:0", offer(), offer("rt"))
        for number in range(3):
            world.task(number)
        await asyncio.sleep(0.0001)
        world.request(40, "rt")
        await asyncio.sleep(0)
        waiting = sum(len(queue) for queue in world.driver.core.queues.values())
        running = sum(len(run.request_ids) for run in device.runs)
        assert waiting + running <= 3 + 1
        assert all(kind.model == "rt" for kind in world.driver.core.queues)
        stories = [world.driver.core.story(request_id) for request_id in range(1, 4)]
        ends = [each.what for story in stories for each in story if isinstance(each.what, Finish)]
        assert [end.reason for end in ends] == [WITHDRAWN] * (2 - running)
        await world.until_ended(3)
        assert world.outcomes == [Outcome.COMPLETED]
        assert [world.outcome(number) for number in range(3)] == ["completed"] * 3

    play(scene)


def test_a_lost_worker_and_a_restart_lose_no_task(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        device = world.device()
        for number in range(30):
            world.task(number)
        await asyncio.sleep(0.005)
        device.lose()
        await asyncio.sleep(1)
        assert len(world.ended) < 30
        world.device()
        await asyncio.sleep(0.012)
        world.feeder.stop()
        await world.driver.drain(0)
        world.begin()
        await world.until_ended(30)
        assert sorted(world.ended) == list(range(1, 31))

    play(scene)


def test_an_end_that_is_not_on_disk_is_none(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        device = world.device()
        world.task(1)
        world.full = True
        await asyncio.sleep(60)
        assert world.outcome(1) is None
        assert 2 <= len(device.batches) <= 10
        world.full = False
        await world.until_ended(1)
        assert world.outcome(1) == "completed"

    play(scene)


def test_a_disk_that_can_not_be_read_is_told_once_and_tasks_wait_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.broken = True
        device = world.device()
        for number in range(1, 9):
            world.task(number)
        await asyncio.sleep(60)
        assert device.batches == []
        world.broken = False
        await world.until_ended(8)

    with structlog.testing.capture_logs() as logs:
        play(scene)
    (said,) = [log for log in logs if log["log_level"] == "error"]
    assert said["event"] == "the inputs of tasks can't be read"
    assert said["error"] == "disk I/O error"


def test_tasks_that_were_put_off_for_long_are_tried_again_once_one_has_succeeded(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.device()
        for number in range(100):
            world.task(number)
        world.full = True
        await asyncio.sleep(600)
        world.full = False
        await world.until_ended(1)
        began_s = world.loop.time()
        await world.until_ended(100)
        assert world.loop.time() - began_s < 1

    play(scene)


@pytest.mark.parametrize("where", ["waiting", "running"])
def test_a_cancelled_task_never_ends_otherwise(tmp_path: Path, where: str) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        if where == "running":
            world.device()
        seq = world.task(1)
        await asyncio.sleep(0.001)
        assert bool(world.driver.core.runs) == (where == "running")
        world.feeder.forget(seq)
        world.device("cpu:1")
        await asyncio.sleep(1)
        assert world.ended == []
        assert world.feeder.tasks == {}

    play(scene)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_runs_them(tmp_path: Path, policy: str) -> None:
    async def scene() -> None:
        world = World(tmp_path, policy)
        world.device()
        world.device("cpu:1")
        for number in range(21):
            world.task(number, model="m" if number % 7 else "none")
        await asyncio.sleep(60)
        assert len(world.ended) == 18
        assert not world.driver.core.queues
        world.feeder.stop()

    play(scene)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_task_ends_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def scene() -> None:
        world = World(tmp_path, chance.choice(["goodput", "edf", "window"]))
        devices = {"cpu:0": world.device("cpu:0", offer(), offer("rt"))}
        cancelled = set()
        for number in range(150):
            deadline_s = chance.choice([0.004, 0.05, 5, 3600])
            seq = world.task(number, deadline_s, priority=chance.randrange(8))
            await asyncio.sleep(chance.choice([0, 0.001, 0.01]))
            what = chance.randrange(12)
            if what == 0:
                target_id = chance.choice(["cpu:0", "cpu:1"])
                if target_id in devices:
                    devices.pop(target_id).lose()
                devices[target_id] = world.device(target_id, offer(), offer("rt"))
            elif what == 1:
                world.full = not world.full
            elif what == 2:
                for device in devices.values():
                    device.broken = not device.broken
            elif what == 3 and world.database.commit([partial(cancel, seq=seq)]) == [True]:
                world.feeder.forget(seq)
                cancelled.add(seq)
            elif what == 4:
                world.feeder.stop()
                await asyncio.sleep(0)  # what was said to the old one is heard
                world.begin()
            elif what > 6:
                world.request(chance.choice([5, 50]), "rt")
        world.full = False
        for device in devices.values():
            device.broken = False
        while world.feeder.tasks:
            await asyncio.sleep(1)
        outcomes = Counter(world.outcome(number) for number in range(150))
        assert outcomes[None] == 0
        assert outcomes["cancelled"] == len(cancelled)
        assert outcomes["completed"] > 0
        assert not cancelled & set(world.ended)
        assert all(len(life) == len(set(life)) for life in world.lives)
        assert world.feeder._inputs.held_bytes == world.feeder._ending_bytes == 0
        assert world.feeder._later._refused == {}
        assert world.driver.background is None
        world.driver.core.validate()

    play(scene)


def cancel(database: Database, seq: int) -> bool:
    return database.end(Ended(seq, Outcome.CANCELLED, "", 0))


async def traffic(world: World, load: float, seconds: float, budget_ms: float) -> float:
    """Requests at random moments, as a share of what full batches would do; the share in time."""
    chance = random.Random(7)
    one_ms = 10 / 8
    end_s = world.loop.time() + seconds
    count = 0
    while world.loop.time() < end_s:
        await asyncio.sleep(chance.expovariate(load / (one_ms / 1e3)))
        world.request(budget_ms, "rt")
        count += 1
    await asyncio.sleep(budget_ms / 1e3)
    assert len(world.outcomes) == count
    return Counter(world.outcomes)[Outcome.COMPLETED] / count


@pytest.mark.parametrize(
    ("policy", "load"),
    [("goodput", 0.4), ("goodput", 0.8), ("goodput", 1.2), ("edf", 0.8), ("fcfs", 0.8)],
)
def test_requests_are_in_time_as_if_there_were_no_tasks(
    tmp_path: Path, policy: str, load: float
) -> None:
    shares: dict[int, float] = {}
    done: dict[int, int] = {}

    async def scene(tasks: int) -> None:
        (tmp_path / str(tasks)).mkdir()
        world = World(tmp_path / str(tasks), policy)
        world.device("cpu:0", offer("rt"), offer("m"))
        for number in range(tasks):
            world.task(number)
        shares[tasks] = await traffic(world, load, 5, budget_ms=40)
        done[tasks] = len(world.ended)

    play(lambda: scene(0))
    play(lambda: scene(4_000))
    print(
        f"{policy} at {load}: {shares[0]:.3f} alone, {shares[4_000]:.3f} beside {done[4_000]} tasks"
    )
    assert shares[4_000] >= shares[0] - 0.03
    if load < 1:
        assert done[4_000] > 100


def test_a_task_that_blocks_a_target_for_long_gets_little_of_it(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        long_ms = 100.0
        device = world.device(
            "cpu:0", offer("rt"), offer("m", base_ms=long_ms, item_ms=0, sizes=(1,))
        )
        for number in range(200):
            world.task(number)
        share = await traffic(world, 0.1, 60, budget_ms=20)
        ran = sum(model == "m" for model, _ in device.batches)
        assert long_ms > 20 / PART
        assert 1 <= ran <= 60 / (long_ms / 1e3 * SHARE) + 3
        assert share > 0.95
        await asyncio.sleep(120)
        assert len(world.ended) == 200

    play(scene)


@pytest.mark.parametrize(("long_ms", "budgets_ms", "most"), [(5.0, (3, 50), 20), (50.0, (20,), 6)])
def test_tasks_that_the_policy_refuses_run_so_rarely_that_99_of_100_requests_are_in_time(
    tmp_path: Path, long_ms: float, budgets_ms: tuple[float, ...], most: int
) -> None:
    seconds = most * long_ms / 1e3 * TRICKLE
    shares: dict[int, float] = {}
    done: dict[int, int] = {}

    async def scene(tasks: int) -> None:
        (tmp_path / str(tasks)).mkdir()
        world = World(tmp_path / str(tasks))
        long = offer("m", base_ms=long_ms, item_ms=0, sizes=(1,))
        world.device("cpu:0", offer("rt", base_ms=1, item_ms=0.25), long)
        for number in range(tasks):
            world.task(number)
        chance = random.Random(7)
        while world.loop.time() < seconds:
            await asyncio.sleep(chance.expovariate(50))
            world.request(chance.choice(budgets_ms), "rt")
        shares[tasks] = Counter(world.outcomes)[Outcome.COMPLETED] / len(world.outcomes)
        done[tasks] = len(world.ended)

    play(lambda: scene(0))
    play(lambda: scene(40))
    assert most / 2 <= done[40] <= most + 3
    assert shares[40] >= shares[0] - 0.01


def test_a_device_that_was_slow_for_a_moment_is_soon_given_tasks_again(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        device = world.device("cpu:0", offer("rt"), offer("m"))
        device.slowness = 300
        for number in range(200):
            world.task(number)
        await world.until_ended(80)  # by then it is believed
        device.slowness = 1
        world.request(250, "rt")
        began_s = world.loop.time()
        await world.until_ended(200)
        assert world.loop.time() - began_s < 5

    play(scene)


def test_tasks_make_no_room_for_what_no_target_could_meet(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.device("cpu:0", offer("rt"), offer("m"))
        for number in range(200):
            world.task(number)
        world.request(0.001, "rt")
        await world.until_ended(200)
        assert world.loop.time() < 1
        assert world.outcomes == [Outcome.INFEASIBLE]

    play(scene)


def test_tasks_that_expire_together_in_the_queue_cost_no_request(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path, "deferred")
        world.device("cpu:0", offer("m"), offer("rt"))
        for number in range(3):
            world.task(number)
        await asyncio.sleep(0.0001)
        assert sum(map(len, world.driver.core.queues.values())) >= 2
        world.loop.now_s += 11  # the machine stood still
        world.request(40, "rt")
        await world.until_ended(3)
        assert world.outcomes == [Outcome.COMPLETED]
        assert [world.outcome(number) for number in range(3)] == ["completed"] * 3

    play(scene)


def test_what_a_lost_target_had_keeps_no_other_idle(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        far = world.device("gpu:0", offer("slow", base_ms=30_000, item_ms=0, sizes=(1,)))
        world.device("cpu:0", offer("m"))
        world.task(0, model="slow")
        await asyncio.sleep(0.001)
        assert len(far.runs) == 1
        far.lose()
        for number in range(1, 200):
            world.task(number)
        await world.until_ended(199)
        assert world.loop.time() < 2

    play(scene)


def test_a_task_that_is_refused_without_running_blocks_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        world = World(tmp_path)
        world.device("cpu:0", offer("rt"), offer("m"), offer("long", base_ms=2_100, sizes=(1,)))
        world.request(40, "rt")
        world.task(0, deadline_s=1, model="long")
        for number in range(1, 100):
            world.task(number)
        await world.until_ended(99)
        assert world.loop.time() < 2

    play(scene)
