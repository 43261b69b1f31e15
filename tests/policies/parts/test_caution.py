"""The factors on the waits that admission expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.goodput import Goodput
from policies.parts.caution import BROKEN, KEPT, LEAST, MISSED, MOST, TOGETHER, Caution
from policies.parts.pace import Pace
from policies.parts.remembering import MOST_KINDS
from scheduler.core.events import Submitted, TargetUp
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import offer, request, target
from tests.policies.playing import on_time, play, standard, written

MODELS_MS = {"short": 3, "alike": 3.5, "long": 24}


@pytest.fixture(scope="module")
def paces() -> dict[str, Pace]:
    """How fast three models are on one target, and `short` on another as `elsewhere`."""
    policy = Goodput()
    scheduler = Scheduler(policy)
    here = [offer(name, base_ms=ms, item_ms=0, sizes=(1,)) for name, ms in MODELS_MS.items()]
    there = offer("elsewhere", base_ms=MODELS_MS["short"], item_ms=0, sizes=(1,))
    scheduler.handle(TargetUp(target("cpu:0", *here)), 0)
    scheduler.handle(TargetUp(target("cpu:1", there)), 0)
    scheduler.handle(Submitted((request(1, 90, RequestClass("short")),)), 0)
    return {name: policy.admission.pace(RequestClass(name)) for name in (*MODELS_MS, "elsewhere")}


def test_a_broken_promise_makes_cautious_about_what_costs_alike_on_the_same_targets(
    paces: dict[str, Pace],
) -> None:
    caution = Caution()
    caution.broken(0, [(paces["short"], 1.0, 3)])
    factors = {name: caution.factor(pace, 1.0, 3) for name, pace in paces.items()}
    assert factors == {"short": BROKEN, "alike": BROKEN, "long": 1.0, "elsewhere": 1.0}


@pytest.mark.parametrize("priorities", [(1_000, 1_001), (1_001, 1_000)])
def test_what_is_forgotten_does_not_depend_on_how_it_is_hashed(
    paces: dict[str, Pace], priorities: tuple[int, int]
) -> None:
    caution = Caution()
    for priority in range(MOST_KINDS - 1):
        caution.factor(paces["short"], 1.0, priority)
    caution.broken(0, [(paces["short"], 1.0, priority) for priority in priorities])
    last = priorities[1]  # the one before it was the most that is remembered
    assert [caution.factor(paces["short"], 1.0, each) for each in (last, priorities[0])] == [
        BROKEN,
        1.0,
    ]


def test_what_costs_alike_is_judged_by_its_weight(paces: dict[str, Pace]) -> None:
    caution = Caution()
    caution.broken(0, [(paces["short"], 1.0, 3)])
    assert caution.factor(paces["short"], 8.0, 3) == 1.0
    assert caution.factor(paces["long"], 8.0, 3) == BROKEN


def test_what_is_as_urgent_is_judged_by_itself(paces: dict[str, Pace]) -> None:
    caution = Caution()
    caution.broken(0, [(paces["short"], 1.0, 7)])
    assert caution.factor(paces["short"], 1.0, 0) == 1.0
    assert caution.factor(paces["short"], 1.0, 7) == BROKEN


def test_at_one_moment_it_is_raised_once_for_all_that_are_alike(paces: dict[str, Pace]) -> None:
    caution = Caution()
    caution.broken(5, [(paces["short"], 1.0, 3), (paces["alike"], 1.0, 3)])
    caution.broken(5, [(paces["short"], 1.0, 3), (paces["long"], 1.0, 3)])
    assert caution.factor(paces["short"], 1.0, 3) == BROKEN
    assert caution.factor(paces["long"], 1.0, 3) == BROKEN
    caution.broken(6, [(paces["short"], 1.0, 3)])
    assert caution.factor(paces["short"], 1.0, 3) == pytest.approx(BROKEN**2)


def test_of_many_that_are_dropped_at_one_moment_one_in_so_many_counts(
    paces: dict[str, Pace],
) -> None:
    caution = Caution()
    for _ in range(3):
        caution.broken(5, [(paces["short"], 1.0, 3)] * TOGETHER)
    assert caution.factor(paces["short"], 1.0, 3) == pytest.approx(BROKEN**3)
    caution.broken(5, [(paces["short"], 1.0, 3)])
    assert caution.factor(paces["short"], 1.0, 3) == pytest.approx(BROKEN**4)


AT_ONCE = """
about: A hundred requests at once, twenty times a second, of which seventy can be served
fleet:
  models: [{name: m, base_ms: 3, per_item_ms: 0.5, jitter: 0.05, batches: [1, 2, 4, 8, 16, 32]}]
  boxes: [{devices: [{id: "gpu:0"}]}]
workload:
  requests: 4000
  process: cameras
  cameras: 100
  fps: 20
  spread: 0.02
  mix: [{model: m, share: 1, deadline_ms: 45}]
"""


@pytest.mark.no_cover
def test_of_many_that_come_at_once_most_refused_are_told_at_once(tmp_path: Path) -> None:
    result = play(written(tmp_path, AT_ONCE))
    assert result.on_time_share() > 0.67
    refused = [row for row in result.rows if row.outcome == "infeasible"]
    assert sum(row.latency_ns == 0 for row in refused) > 0.5 * len(refused)


def test_what_is_served_lowers_all_factors(paces: dict[str, Pace]) -> None:
    caution = Caution()
    caution.broken(0, [(paces["long"], 1.0, 3)])
    assert caution.factor(paces["elsewhere"], 1.0, 3) == 1.0
    caution.kept(3, missed=0)
    assert caution.factor(paces["long"], 1.0, 3) == pytest.approx(BROKEN * KEPT**3)
    assert caution.factor(paces["elsewhere"], 1.0, 3) == pytest.approx(KEPT**3)
    assert caution.factor(paces["short"], 1.0, 3) == 1.0, "not known until now"


def test_what_would_have_filled_a_batch_lowers_all_factors(paces: dict[str, Pace]) -> None:
    caution = Caution()
    assert caution.factor(paces["long"], 1.0, 3) == 1.0
    caution.kept(1, missed=2)
    assert caution.factor(paces["long"], 1.0, 3) == pytest.approx(KEPT * MISSED**2)


def test_a_factor_has_an_upper_and_a_lower_end(paces: dict[str, Pace]) -> None:
    caution = Caution()
    for moment in range(100):
        caution.broken(moment, [(paces["short"], 1.0, 3)])
    assert caution.factor(paces["short"], 1.0, 3) == MOST
    caution.kept(10_000, missed=0)
    assert caution.factor(paces["short"], 1.0, 3) == LEAST
    caution.broken(100, [(paces["short"], 1.0, 3)])
    assert caution.factor(paces["short"], 1.0, 3) == pytest.approx(LEAST * BROKEN)


def test_what_has_come_at_any_weight_is_not_remembered_for_ever(paces: dict[str, Pace]) -> None:
    caution = Caution()
    for power in range(-400, 400):
        caution.broken(power, [(paces["short"], 2.0**power, 3)])
    assert len(caution._factors) <= 200


@pytest.mark.no_cover
def test_promises_broken_to_what_is_long_cost_what_is_short_nothing() -> None:
    """Of what one device can't all do it refused what it could, where one factor served all."""
    experiment = standard("single-overload", requests=2_000)
    goodput, edf = (on_time(experiment, policy) for policy in ("goodput", "edf"))
    assert goodput > 0.6
    assert goodput > edf - 0.02


URGENT = """
about: More of one model than a device can do, half of it urgent
fleet:
  models: [{name: m, base_ms: 10, per_item_ms: 0, batches: [1]}]
  boxes: [{devices: [{id: "cpu:0"}]}]
workload:
  requests: 2000
  process: poisson
  load: 2
  mix:
    - {model: m, share: 1, deadline_ms: 30, priority: 0}
    - {model: m, share: 1, deadline_ms: 30, priority: 7}
"""


@pytest.mark.no_cover
def test_promises_broken_to_what_can_wait_cost_what_is_urgent_nothing(tmp_path: Path) -> None:
    experiment = written(tmp_path, URGENT)
    goodput, edf = (
        play(experiment, policy).by("priority")[0].on_time for policy in ("goodput", "edf")
    )
    assert goodput > 0.98 * edf
