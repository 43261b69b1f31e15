"""Refusing what would make others late that are worth more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.goodput import Goodput
from replay.laws import Watch
from scheduler.core.commands import Dispatch, Finish
from scheduler.core.events import BatchDone, Event, Submitted, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, of, offer, request, target
from tests.policies.playing import endings, on_time, standard, written

SHORT, LONG, FRAME, TABLE = map(RequestClass, ("short", "long", "frame", "table"))
BASE_MS = {"short": 0.5, "long": 50, "frame": 4, "table": 5}
ITEM_MS = {"short": 0.5, "long": 50, "frame": 4, "table": 15}


def alone(model: str, *sizes: int) -> Offer:
    return offer(model, base_ms=BASE_MS[model], item_ms=ITEM_MS[model], sizes=sizes)


NEAR = target("cpu:0", alone("short", 1), alone("long", 1))
BESIDE = target("cpu:0", alone("frame", 1), alone("table", 1, 2, 4))
CLOUD = replace(NEAR, id="cloud", remote=True, cost_per_request=0.1, slots=4, width=4)


class Box:
    """Devices that run what they are given for as long as was measured."""

    def __init__(self, *specs: TargetSpec) -> None:
        self.watch = Watch(Goodput)
        self.now_ms = 0.0
        self.last_id = 0
        self.runs: list[tuple[float, int, Dispatch]] = []
        self.sent: list[Dispatch] = []
        self.ends: list[Outcome] = []
        for spec in specs or (NEAR,):
            self.handle(TargetUp(spec))

    def handle(self, event: Event) -> list[Finish]:
        commands = self.watch.handle(event, int(self.now_ms * MS))
        for sent in of(Dispatch, commands):
            ends_ms = [end_ms for end_ms, _, run in self.runs if run.target_id == sent.target_id]
            free_ms = max([self.now_ms, *ends_ms])
            takes_ms = BASE_MS[sent.model] + ITEM_MS[sent.model] * len(sent.request_ids)
            self.runs.append((free_ms + takes_ms, sent.run_id, sent))
            self.sent.append(sent)
            self.runs.sort()
        finished = of(Finish, commands)
        self.ends += [end.outcome for end in finished]
        return finished

    def until(self, ms: float) -> None:
        while self.runs and self.runs[0][0] <= ms:
            self.now_ms, run_id, _ = self.runs.pop(0)
            self.handle(BatchDone(run_id))
        self.now_ms = ms

    def ask(self, kind: RequestClass, budget_ms: float, **rest: Any) -> Finish | None:
        """What is said at once."""
        self.last_id += 1
        one = request(self.last_id, self.now_ms + budget_ms, kind, **rest)
        ends = self.handle(Submitted((one,)))
        return next((end for end in ends if end.request_id == one.id), None)

    def hear(
        self, count: int, every_ms: float, budget_ms: float, kind: RequestClass = SHORT, **rest: Any
    ) -> None:
        """Requests come, one every so many milliseconds."""
        for _ in range(count):
            assert self.ask(kind, budget_ms, **rest) is None
            self.until(self.now_ms + every_ms)


def test_what_costs_others_more_than_it_is_worth_is_refused_with_the_reason():
    box = Box()
    box.hear(64, every_ms=10, budget_ms=20)
    said = box.ask(LONG, 10_000)
    assert said is not None
    assert said.outcome is Outcome.INFEASIBLE
    # In each of its first 81 ms a tenth of one comes that can wait 19; they need a tenth of it all,
    # so they are worth a tenth less, and a tenth more come late behind those that wait.
    assert said.reason == (
        "would take 100.0 ms, behind which others of weight 8.0 would be late; its own is 1"
    )
    assert said.detail["earliest_budget_ms"] == {}
    box.watch.close()


def test_a_model_with_a_quick_variant_costs_the_others_no_more_than_that_takes():
    quick = offer("long", "quick", base_ms=0, item_ms=2, sizes=(1,), rank=1)
    box = Box(target("cpu:0", alone("short", 1), alone("long", 1), quick))
    box.hear(64, every_ms=10, budget_ms=20)
    assert box.ask(LONG, 10_000) is None
    box.watch.close()


@pytest.mark.parametrize("rest", [{"weight": 20.0}, {"priority": 2}, {"accept_late": True}])
def test_it_is_admitted_where_it_is_worth_more_or_more_important_or_may_be_late(rest):
    box = Box()
    box.hear(64, every_ms=10, budget_ms=20)
    assert box.ask(LONG, 10_000, **rest) is None


def test_what_is_less_important_does_not_count():
    box = Box()
    box.hear(64, every_ms=10, budget_ms=20, priority=5)
    assert box.ask(LONG, 10_000) is None


def test_who_can_wait_does_not_count():
    box = Box()
    box.hear(64, every_ms=10, budget_ms=200)
    assert box.ask(LONG, 10_000) is None


def test_few_others_do_not_count():
    box = Box()
    box.hear(64, every_ms=200, budget_ms=20)
    assert box.ask(LONG, 10_000) is None


def test_others_that_come_no_more_do_not_count():
    box = Box()
    box.hear(64, every_ms=10, budget_ms=20)
    box.until(box.now_ms + 100)
    assert box.ask(LONG, 10_000) is None


def test_nobody_is_refused_for_others_of_the_same_cost():
    box = Box()
    for _ in range(200):
        said = box.ask(SHORT, 1.5)
        assert said is None or "behind which others" not in said.reason
        box.until(box.now_ms + 0.2)


def test_of_two_devices_one_is_left_to_what_is_short():
    box = Box(NEAR, replace(NEAR, id="cpu:1"))
    box.hear(64, every_ms=10, budget_ms=20)
    assert [box.ask(LONG, 10_000) for _ in range(3)] == [None] * 3
    ends_ms = set()
    while box.last_id < 200:
        box.hear(1, every_ms=5, budget_ms=20)
        ends_ms |= {end_ms for end_ms, _, run in box.runs if run.model == "long"}
    first, second, third = sorted(ends_ms)
    # What comes now can wait for the other device if that is free in 19 ms.
    assert second - first >= 81
    assert third - second >= 81
    box.watch.close()


@pytest.mark.parametrize(
    ("every_ms", "budget_ms", "admitted"), [(2.5, 20, True), (2.5, 2, False), (1, 20, False)]
)
def test_beside_a_long_run_what_is_short_may_be_late_that_waits_for_the_other_device(
    every_ms, budget_ms, admitted
):
    """Of one device, 40 or 100 % would be left busy: few wait for longer than 19 ms, not than 1."""
    box = Box(NEAR, replace(NEAR, id="cpu:1"))
    box.hear(256, every_ms=every_ms, budget_ms=budget_ms)
    assert (box.ask(LONG, 10_000) is None) == admitted


@pytest.mark.parametrize(("burst", "admitted"), [(1, True), (16, False)])
def test_what_comes_in_bursts_needs_more_room(burst, admitted):
    box = Box(NEAR, replace(NEAR, id="cpu:1"))
    for _ in range(256 // burst):
        box.hear(burst, every_ms=0, budget_ms=12)
        box.until(box.now_ms + 2.5 * burst)
    assert (box.ask(LONG, 10_000) is None) == admitted


def test_what_came_all_at_once_says_nothing_of_how_it_comes():
    box = Box(NEAR, replace(NEAR, id="cpu:1"))
    box.hear(16, every_ms=0, budget_ms=20)
    box.until(40)
    assert box.ask(LONG, 10_000) is None


def test_a_device_that_does_not_serve_what_is_short_is_free_for_what_is_long():
    both = NEAR.offers
    box = Box(replace(NEAR, offers=both[:1]), replace(NEAR, id="gpu:0", offers=both[1:]))
    box.hear(64, every_ms=10, budget_ms=20)
    assert box.ask(LONG, 10_000) is None
    assert [run.target_id for _, _, run in box.runs if run.model == "long"] == ["gpu:0"]


def test_what_is_short_may_have_its_room_where_nothing_is_long():
    box = Box(NEAR, replace(NEAR, id="cpu:1", offers=NEAR.offers[:1]))
    box.hear(64, every_ms=10, budget_ms=20)
    assert box.ask(LONG, 10_000) is None
    assert [run.target_id for _, _, run in box.runs if run.model == "long"] == ["cpu:0"]


def test_where_a_cloud_can_do_it_for_money_nobody_is_refused():
    box = Box(NEAR, CLOUD)
    box.hear(64, every_ms=10, budget_ms=20)
    assert box.ask(LONG, 10_000) is None


def sizes(box: Box, kind: RequestClass) -> set[int]:
    return {len(run.request_ids) for run in box.sent if run.model == kind.model}


def test_what_can_wait_runs_in_sizes_behind_which_others_are_in_time():
    box = Box(BESIDE)
    box.hear(64, every_ms=20, budget_ms=40, kind=FRAME)
    box.hear(8, every_ms=0, budget_ms=10_000, kind=TABLE)
    box.hear(64, every_ms=20, budget_ms=40, kind=FRAME)
    assert sizes(box, TABLE) == {1, 2}
    assert set(box.ends) == {Outcome.COMPLETED}
    box.watch.close()


@pytest.mark.parametrize("rest", [{"budget_ms": 200}, {"budget_ms": 40, "priority": 5}])
def test_it_runs_in_the_largest_where_the_others_can_wait_or_are_less_important(rest):
    box = Box(BESIDE)
    box.hear(64, every_ms=20, kind=FRAME, **rest)
    box.hear(9, every_ms=0, budget_ms=10_000, kind=TABLE)
    box.until(box.now_ms + 1_000)
    assert sizes(box, TABLE) == {1, 4}
    box.watch.close()


COMPANY = """
about: On a GPU, frames that can wait beside some that can't and mostly find it busy anyway
fleet:
  models:
    - {name: table, base_ms: 21, per_item_ms: 7, batches: [1, 2, 4, 8, 16]}
    - {name: frame, base_ms: 13, per_item_ms: 1, batches: [1, 2, 4, 8, 16]}
    - {name: short, base_ms: 0.4, per_item_ms: 0.1, batches: [1, 2, 4, 8, 16]}
  boxes: [{devices: [{id: "gpu:0"}]}]
workload:
  requests: 2000
  process: poisson
  rate_per_s: 120
  mix:
    - {model: table, share: 1, deadline_ms: {uniform: [115, 270]}}
    - {model: frame, share: 1, deadline_ms: {uniform: [80, 310]}}
    - {model: short, share: 1, deadline_ms: 2.5}
"""


@pytest.mark.no_cover
def test_a_run_costs_others_less_per_request_where_it_will_be_a_large_batch(tmp_path):
    """Counted alone, nearly all of them would be refused."""
    played = endings(written(tmp_path, COMPANY))
    tables = [ending.in_time for ending in played if ending.arrival.kind.model == "table"]
    assert sum(tables) > 0.9 * len(tables)


@pytest.mark.no_cover
def test_long_deadlines_beside_short_ones():
    experiment = standard("deadlines-unlike", requests=2_000)
    assert on_time(experiment) > on_time(experiment, "edf") + 0.06


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["unlike-models", "unlike-models-overload"])
def test_models_of_unlike_cost_share_a_box(name):
    experiment = standard(name, requests=1_000)
    assert on_time(experiment) > 0.78
    assert on_time(experiment, "edf") < 0.65
