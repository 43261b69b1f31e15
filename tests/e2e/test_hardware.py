"""A box whose CPU is two real devices: telemetry, contention, limits, and a lazy model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scheduler import Client
from tests.e2e.running_agent import RunningAgent
from tests.workers.onnx_models import dense, relu, save

CORES = sorted(os.sched_getaffinity(0))
NICE = 7
PATIENCE_S = 60

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two CPU cores to split")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("hardware")
    save(relu(), folder / "models/relu/1/model.onnx")
    save(dense(), folder / "models/lazy/model.onnx")
    (folder / "models/lazy/model.yaml").write_text(
        "residency: lazy\nvariants: {a: {file: model.onnx}}"
    )
    agent = RunningAgent(
        folder,
        folder / "models",
        profile={"seconds": 0.2, "max_batch": 2},
        devices=[
            {"id": "cpu:0", "cores": [CORES[0]], "nice": NICE, "memory_mb": 8000},
            {"id": "cpu:1", "cores": [CORES[1]], "model_memory_mb": 1},
        ],
    )
    yield agent
    agent.close()


@pytest.fixture
def client(agent: RunningAgent) -> Iterator[Client]:
    with Client(agent.url) as client:
        yield client


def wait_for(client: Client, key: str) -> dict[str, Any]:
    """Each target's telemetry, once all of it holds something under a key."""
    end = time.monotonic() + PATIENCE_S
    while True:
        told = {target["id"]: target["telemetry"] for target in client.status()["targets"]}
        if all(reading.get(key) for reading in told.values()):
            return told
        assert time.monotonic() < end, told
        time.sleep(0.2)


def test_each_device_tells_what_it_does_and_how_the_other_slows_it(client: Client) -> None:
    told = wait_for(client, "contention")

    assert told["cpu:0"]["contention"].keys() == {"cpu:1"}
    assert told["cpu:1"]["contention"].keys() == {"cpu:0"}
    assert all(factor > 0 for reading in told.values() for factor in reading["contention"].values())
    for reading in wait_for(client, "utilisation").values():
        assert 0 <= reading["utilisation"] <= 1
        assert 0 < reading["memory_used_bytes"] < reading["memory_total_bytes"]


def test_a_worker_keeps_to_its_priority(agent: RunningAgent, client: Client) -> None:
    worker = next(t["pid"] for t in client.status()["targets"] if t["id"] == "cpu:0")

    assert {thread_nice(worker, thread.id) for thread in psutil.Process(worker).threads()} >= {
        max(NICE, os.nice(0))
    }


def thread_nice(pid: int, thread: int) -> int:
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return int(fields[16])  # the nineteenth field of proc(5)


def test_a_lazy_model_answers_once_it_is_loaded(client: Client) -> None:
    x = np.linspace(-1, 1, 128, dtype=np.float32)

    for _ in range(3):
        scores = client.infer("lazy", {"x": x}, deadline_ms=20_000)["y"]
        assert np.abs(scores).max() <= 1
