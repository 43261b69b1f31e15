"""A real daemon's journal: what it did under trouble is what the core does again."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies import make_policy
from replay.journal import arrivals, read_journal, targets, verify
from replay.journal_files import journal_files
from replay.live.endings import LiveEnding
from replay.live.replay import play_live
from replay.simulator import Arrival, Simulator
from scheduler import Client, RequestEnded
from scheduler.core.commands import Finish
from scheduler.core.events import BatchFailed, Cancelled, PolicySwapped, Submitted, TargetDown
from scheduler.core.requests import RequestClass
from tests.e2e.running_agent import ModelsNamed, RunningAgent
from tests.waiting import eventually

REQUESTS = 10_000
AHEAD = 8
MS = 1_000_000


@pytest.fixture
def agent(models_named: ModelsNamed, tmp_path: Path) -> Iterator[RunningAgent]:
    agent = RunningAgent(
        tmp_path, models_named("pair", "relu", "slow"), profile={"max_batch": 8, "seconds": 0.5}
    )
    yield agent
    agent.close()


def folder(agent: RunningAgent) -> Path:
    return agent.folder / "state" / "journal"


def cancels_one_that_waits(client: Client, slow: dict[str, Any], endings: Counter[str]) -> bool:
    """False where the machine held this process up until the box was done with all of them."""
    waiting = [client.submit("slow", slow, deadline_ms=60_000) for _ in range(AHEAD)]
    endings["ahead"] += AHEAD
    client.status()  # By now the box holds them.
    return waiting[-1].cancel()


def mixed_load(agent: RunningAgent, count: int, trouble: dict[int, Any]) -> Counter[str]:
    """Requests of two models with all sorts of deadlines, some cancelled; and trouble meanwhile.

    How they ended, and how many were asked `ahead` of them.
    """
    chance = random.Random(11)
    endings: Counter[str] = Counter()
    pace = threading.Semaphore(96)
    done = threading.Semaphore(0)

    def note(future: Future[Any]) -> None:
        try:
            endings[future.result().outcome.value] += 1
        except (CancelledError, RequestEnded) as error:
            endings[type(error).__name__] += 1
        pace.release()
        done.release()

    inputs: dict[str, dict[str, Any]] = {
        "relu": {"x": np.ones(3, np.float32)},
        "slow": {"x": np.ones((1, 1), np.float32)},
    }
    with Client(agent.url) as client:
        eventually(partial(cancels_one_that_waits, client, inputs["slow"], endings))
        for number in range(count):
            if number in trouble:
                trouble[number]()
            pace.acquire()
            model = "slow" if chance.random() < 0.004 else "relu"
            future = client.submit(
                model,
                inputs[model],
                deadline_ms=chance.choice((0.3, 1, 3, 30, 300)),
                priority=chance.randrange(8),
                accept_late=chance.random() < 0.1,
            )
            future.add_done_callback(note)
            if chance.random() < 0.05:
                future.cancel()
        for _ in range(count):
            done.acquire()
    return endings


def test_ten_thousand_requests_and_much_trouble_replay_to_the_same_commands(
    agent: RunningAgent,
) -> None:
    def swap(name: str) -> Any:
        return lambda: agent.write_config(policy={"name": name})

    endings = mixed_load(
        agent,
        REQUESTS,
        {
            2000: swap("edf"),
            3000: lambda: os.kill(agent.pid_of("WorkerProcess"), signal.SIGKILL),
            6000: swap("fcfs"),
            8000: swap("goodput"),
        },
    )
    ahead = endings.pop("ahead")
    assert endings.total() == REQUESTS
    with Client(agent.url) as client:
        assert client.status()["journal"]["dropped"] == 0
    assert agent.stop() == 0

    (verdict,) = verify(folder(agent))
    assert (verdict.difference, verdict.unverified) == (None, None)
    met = Counter(type(what) for _, what in read_journal(folder(agent)))
    assert met[TargetDown] >= 1
    assert met[Cancelled] > 0
    assert met[PolicySwapped] >= 1
    outcomes = Counter(
        what.outcome.value for _, what in read_journal(folder(agent)) if isinstance(what, Finish)
    )
    # What could not wait to be sent never was a request to the box.
    assert verdict.requests == outcomes.total() <= REQUESTS + ahead
    assert outcomes["cancelled"] > 0
    # Which of the two it is each decides by its own clock.
    results = outcomes["completed"] + outcomes["late"]
    assert results >= endings["completed"] + endings["late"]
    assert endings["completed"] > 0
    assert outcomes["expired"] + outcomes["infeasible"] > 0

    again = list(arrivals(folder(agent)))
    assert len(again) == verdict.requests
    assert {arrival.kind.model for arrival in again} == {"relu", "slow"}
    assert [spec.id for spec in targets(folder(agent))] == ["cpu:0"]


def test_a_killed_scheduler_leaves_a_journal_that_can_be_read(agent: RunningAgent) -> None:
    mixed_load(agent, 500, {})
    with Client(agent.url) as client:
        while client.status()["journal"]["waiting_bytes"]:
            threading.Event().wait(0.01)
        os.kill(agent.pid_of("SchedulerProcess"), signal.SIGKILL)
        client.infer("relu", {"x": np.ones(3, np.float32)}, deadline_ms=60_000)
    mixed_load(agent, 500, {})
    assert agent.stop() == 0
    notes: list[str] = []
    killed, successor = verify(folder(agent), notes.append)
    assert (killed.difference, killed.unverified) == (None, None)
    assert (successor.difference, successor.unverified) == (None, None)
    assert killed.requests > 0
    assert successor.requests > 0
    assert all("cut off" in note for note in notes)
    assert len(journal_files(folder(agent))) == 2


def test_a_live_replay_is_journalled_as_it_was_planned(agent: RunningAgent) -> None:
    plan = [
        Arrival(number * 2 * MS, RequestClass("pair" if number % 3 else "relu"), 5_000 * MS)
        for number in range(300)
    ]
    endings: list[LiveEnding] = []
    tally = play_live(agent.url, plan, endings.append, processes=2)
    assert sorted(ending.number for ending in endings) == list(range(300))
    assert [e.at_ns for e in endings] == sorted(e.at_ns for e in endings)
    assert tally.sent == tally.ended == 300
    assert agent.stop() == 0
    seen = [
        r for _, e in read_journal(folder(agent)) if isinstance(e, Submitted) for r in e.requests
    ]
    kinds = Counter(request.kind.model for request in seen)
    assert kinds == Counter(arrival.kind.model for arrival in plan)

    again = list(arrivals(folder(agent)))
    simulator = Simulator(make_policy("goodput"), targets(folder(agent)), lambda _run, _kind: MS)
    assert len(list(simulator.run(again))) == 300
    assert [e for _, e in read_journal(folder(agent)) if isinstance(e, BatchFailed)] == []
