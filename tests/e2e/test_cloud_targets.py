"""A box with a cloud that is another box: real agents, real doors, a relay between them."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.noop import make_models
from benchmarks.spill import Relay
from benchmarks.spill_clouds import emulated
from scheduler import Client, LaxityError
from tests.e2e.running_agent import RunningAgent

BUDGET, COST = 0.2, 0.001
X = {"x": np.zeros(16, np.float32)}


class Pair:
    """A box that is too slow, and a cloud at the other end of a relay."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        make_models(folder / "models")
        shutil.rmtree(folder / "models/echo")
        for name in ("far", "near"):
            (folder / name).mkdir()
        self.far = RunningAgent(
            folder / "far",
            folder / "models",
            listen={"grpc": "127.0.0.1:0"},
            devices=emulated({"base_ms": 3.0, "per_item_ms": 1.0}),
        )
        stack.callback(self.far.close)
        self.relay = stack.enter_context(Relay(f"grpc://{self.far.address('grpc')}", None))
        cloud = {"name": "far", "url": self.relay.url, "cost_per_request": COST}
        self.near = RunningAgent(
            folder / "near",
            folder / "models",
            devices=emulated({"base_ms": 20.0, "per_item_ms": 30.0}),
            cloud=[{**cloud, "budget_per_hour": BUDGET}],
        )
        stack.callback(self.near.close)
        self.client = stack.enter_context(Client(self.near.url))

    def cloud(self) -> dict[str, Any]:
        return next(t for t in self.client.status()["targets"] if t["id"] == "far")

    def until(self, breaker: str) -> None:
        for _ in range(1_000):
            told = self.cloud()
            if told["up"] and told["breaker"]["state"] == breaker:
                return
            time.sleep(0.02)
        raise AssertionError(f"the breaker is not {breaker}: {self.cloud()}")

    def burst(self, requests: int, deadline_ms: float) -> Counter[str]:
        """Where the requests of a burst ran in time; those that did not, by how they ended."""
        futures = [self.client.submit("noop", X, deadline_ms=deadline_ms) for _ in range(requests)]
        where: Counter[str] = Counter()
        for future in futures:
            try:
                where[future.result().target] += 1
            except LaxityError as error:
                where[error.code] += 1
        return where


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("pair"), stack)


def test_a_burst_that_is_too_much_for_a_box_spills_and_no_more_than_the_budget(pair: Pair):
    pair.until("closed")
    assert set(pair.burst(1, 5_000)) == {"cpu:0"}, "what is in time for nothing costs nothing"
    # 30 ms each: the box alone could do 50 of these in time.
    where = pair.burst(150, 1_500)
    assert where["far"] + where["cpu:0"] > 60, where
    assert where["far"] > 0
    for _ in range(3):
        pair.burst(150, 1_500)
    assert pair.cloud()["spending"]["budgets"][0]["spent"] <= BUDGET
    with Client(pair.far.url) as far:
        assert far.status()["outcomes"]["completed"] * COST <= BUDGET + 1e-9


def test_what_the_box_can_do_is_done_while_the_cable_is_out(pair: Pair):
    pair.relay.cut()
    pair.until("open")
    assert pair.burst(5, 5_000) == {"cpu:0": 5}
    pair.relay.restore()
    pair.until("half-open")
