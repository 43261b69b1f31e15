"""A gamble on an idle slow device, where a fast one that is busy will surely be in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.parts.odds import CHOICES
from policies.parts.outlook import Outlook
from policies.parts.serving import candidates
from policies.parts.surer import surer_elsewhere
from scheduler.core.events import Submitted, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.policy import Decision, Place, View, Wake
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, M, request
from tests.policies.playing import on_time, written

FAST_AND_SLOW = """
about: A fast device beside a slow one whose batches are in time only nine times out of ten
fleet:
  models: []
  boxes:
    - devices:
        - {id: "cpu:0", models: [{name: m, latency: [
            {batch: 1, p50_ms: 20, p90_ms: 25}, {batch: 4, p50_ms: 60, p90_ms: 70}]}]}
        - {id: "gpu:0", models: [{name: m, latency: [
            {batch: 1, p50_ms: 5, p90_ms: 6}, {batch: 8, p50_ms: 12, p90_ms: 13}]}]}
workload:
  requests: 3000
  process: poisson
  rate_per_s: 60
  mix: [{model: m, deadline_ms: 25}]
"""


@pytest.mark.no_cover
def test_with_little_to_do_nothing_is_gambled_away(tmp_path: Path) -> None:
    """One request in seventy was late on the slow device while the fast one was idle again."""
    experiment = written(tmp_path, FAST_AND_SLOW)
    assert on_time(experiment, "goodput") >= on_time(experiment, "edf") - 0.001


class Asks:
    """Sends the first request to the fast device, and asks for the others."""

    def __init__(self) -> None:
        self.outlook = Outlook(CHOICES[-1])
        self.told: list[Wake | None] = []

    def decide(self, view: View) -> list[Decision]:
        self.outlook.look(view)
        slow, fast = view.targets["cpu:0"], view.targets["gpu:0"]
        if not fast.runs:
            (queue,) = view.queues.values()
            return [Place("gpu:0", fast.usable(M)[0], (queue.head(),), "first")]
        self.told.append(surer_elsewhere(self.outlook, list(candidates(self.outlook, slow))))
        return []


def asked(budgets_ms: list[float], kind: RequestClass = M) -> Wake | None:
    """What is told of a slow device 1 ms after a fast one has begun a request."""
    policy = Asks()
    scheduler = Scheduler(policy)
    for target_id, ms in (("cpu:0", (15, 20, 30)), ("gpu:0", (4, 5, 6))):
        times = tuple(each * MS for each in ms for _ in range(7))
        scheduler.handle(TargetUp(TargetSpec(target_id, (Offer("m", "v", "r", {1: times}),), 2)), 0)
    scheduler.handle(Submitted((request(1, 1_000),)), 0)
    policy.told.clear()
    later = [request(number, ms, kind) for number, ms in enumerate(budgets_ms, 2)]
    scheduler.handle(Submitted(tuple(later)), MS)
    return policy.told[-1]


def test_it_waits_for_the_device_that_is_sure() -> None:
    told = asked([25])
    assert told is not None
    assert told.reason == "gpu:0 will surely be in time"
    assert MS < told.at_ns <= 7 * MS


@pytest.mark.parametrize(
    "budgets_ms",
    [
        [60],  # sure on the slow device as well
        [25, 25, 25, 25, 25],  # more than the fast one could surely do
    ],
)
def test_it_does_not_wait_otherwise(budgets_ms: list[float]) -> None:
    assert asked(budgets_ms) is None


def test_it_does_not_wait_for_a_device_that_has_failed_the_request() -> None:
    assert asked([25], M._replace(alone=2, failed_at="gpu:0")) is None
