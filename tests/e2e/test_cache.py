"""A box with a cache over a real Redis, seen from its doors."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from scheduler import Client
from tests.e2e.running_agent import ModelsNamed, RunningAgent
from tests.redis_server import RedisServer, needs_redis

pytestmark = needs_redis


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def agent(
    redis: RedisServer, models_named: ModelsNamed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningAgent]:
    agent = RunningAgent(
        tmp_path_factory.mktemp("cached"),
        models_named("relu"),
        listen={"http": "127.0.0.1:0"},
        cache={"url": redis.url, "timeout_ms": 200.0},
    )
    yield agent
    agent.end()


def test_every_door_says_that_an_answer_was_kept(agent: RunningAgent) -> None:
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    with Client(agent.url) as client:
        first = client.infer("relu", {"x": x}, deadline_ms=5000)
        again = client.infer("relu", {"x": x}, deadline_ms=5000)
        batched = client.infer("relu", {"x": x[None]}, deadline_ms=5000)
        assert (first.target, again.target, batched.target) == ("cpu:0", "cache", "cache")
        assert (again.variant, again.runtime) == (first.variant, first.runtime)
        np.testing.assert_array_equal(again["y"], [0, 0, 2])
        np.testing.assert_array_equal(batched["y"], [[0, 0, 2]])
        assert client.status()["cache"]["hits"]["memory"] == 2
    asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [-1, 0, 2]}]}
    url = f"http://{agent.address('http')}/v2/models/relu"
    with urllib.request.urlopen(f"{url}/infer", json.dumps(asked).encode()) as answer:
        assert answer.headers["x-laxity-target"] == "cache"
        assert json.load(answer)["outputs"][0]["data"] == [0, 0, 2]
    with urllib.request.urlopen(f"{url}/stats") as answer:
        (counts,) = json.load(answer)["model_stats"]
    inferences = counts["inference_stats"]
    assert (inferences["success"]["count"], inferences["cache_hit"]["count"]) == (4, 3)
    assert (inferences["cache_miss"]["count"], counts["execution_count"]) == (1, 1)


def test_status_shows_what_the_cache_did(agent: RunningAgent) -> None:
    command = [sys.executable, "-m", "scheduler.cli", "status", "--url", agent.url]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "hits" in shown
    assert "redis  redis://127.0.0.1" in shown


def test_nothing_is_lost_when_redis_goes_and_comes(agent: RunningAgent, redis: RedisServer) -> None:
    with Client(agent.url) as client:

        def ask(first: int) -> None:
            xs = [np.full(3, first + i // 2, np.float32) for i in range(400)]
            futures = [client.submit("relu", {"x": x}, deadline_ms=20_000) for x in xs]
            for x, future in zip(xs, futures, strict=True):
                np.testing.assert_array_equal(future.result()["y"], x)

        ask(1_000)
        redis.hang()
        ask(2_000)
        redis.kill()
        ask(3_000)
        redis.start()
        while not client.status()["cache"]["redis"]["open"]:
            pass
        ask(4_000)
        assert client.status()["cache"]["held"] == 0
