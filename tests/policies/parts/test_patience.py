"""When a target waits that could serve, and what it learns from the waits before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from policies.parts.coming import Coming
from policies.parts.meanwhile import Meanwhile
from policies.parts.outlook import Outlook
from policies.parts.patience import Patience
from policies.parts.serving import Candidate
from replay.experiment import Experiment
from tests.core.world import MS
from tests.policies.playing import endings, on_time, written

ONE_AFTER_ANOTHER = """
about: Clients that wait for each answer, or refusal, before they ask again.
fleet:
  models:
    - {name: short, base_ms: 1.5, per_item_ms: 0.5, batches: [1, 2, 4, 8]}
    - {name: long, base_ms: 2, per_item_ms: 18, batches: [1, 2, 4]}
  boxes: [{devices: [DEVICES]}]
workload:
  process: clients
  clients: CLIENTS
  think_ms: THINK
  requests: 1000
  mix:
    - {model: short, share: SHORT, deadline_ms: 3.2}
    - {model: long, share: 1, deadline_ms: 120}
"""
FAR_TOO_MUCH = """
about: Many times more than the capacity, of a model that needs its batches.
fleet:
  models: [{name: m, base_ms: 14, per_item_ms: 2.3, batches: [1, 2, 4, 8, 16], jitter: 0.03}]
  boxes: [{devices: [{id: "gpu:0"}, {id: "gpu:1", time_scale: 0.54}]}]
workload:
  process: poisson
  load: LOAD
  requests: 3000
  mix: [{model: m, deadline_scale: {uniform: [1.6, 4.7]}}]
"""


def in_time_per_s(experiment: Experiment, policy: str) -> float:
    played = list(endings(experiment, policy))
    return sum(each.in_time for each in played) / max(each.at_ns for each in played) * 1e9


ONE, TWO = '{id: "gpu:0"}', '{id: "gpu:0"}, {id: "gpu:1", time_scale: 3}'


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("clients", "think_ms", "short", "devices"), [(1, 5, 3, ONE), (5, 1, 6, TWO)]
)
def test_who_asks_one_after_another_is_served_as_fast_as_without_foresight(
    tmp_path: Path, clients: int, think_ms: int, short: int, devices: str
) -> None:
    """A lone client had 43 in time per second, `edf` 87; five that repeat refusals 21, and 74."""
    told = {"CLIENTS": clients, "THINK": think_ms, "SHORT": short, "DEVICES": devices}
    text = ONE_AFTER_ANOTHER
    for name, value in told.items():
        text = text.replace(name, str(value))
    experiment = written(tmp_path, text)
    assert in_time_per_s(experiment, "goodput") > in_time_per_s(experiment, "edf")


@pytest.mark.no_cover
@pytest.mark.parametrize("load", [16, 32])
def test_far_beyond_the_capacity_batches_fill(tmp_path: Path, load: int) -> None:
    """With 134 and 39 in time per second it was below `edf`, with 176 and 171."""
    experiment = written(tmp_path, FAR_TOO_MUCH.replace("LOAD", str(load)))
    assert in_time_per_s(experiment, "goodput") > 2 * in_time_per_s(experiment, "edf")


SHORT_DEADLINES = """
about: More than the capacity, of a model whose deadlines are hardly longer than its batches.
fleet:
  models: [{name: m, base_ms: 9.5, per_item_ms: 0.5, batches: [1, 2, 4, 8, 16], jitter: 0.08}]
  boxes: [{devices: [DEVICES]}]
workload:
  process: poisson
  rate_per_s: RATE
  requests: 2000
  mix: [{model: m, deadline_ms: DEADLINE}]
"""


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("rate", "deadline_ms", "devices"), [(250, 13, ONE), (1000, 16, ONE), (500, 16, TWO)]
)
def test_no_target_waits_for_more_of_what_is_queued(
    tmp_path: Path, rate: int, deadline_ms: int, devices: str
) -> None:
    """Idle most of the time, it had 11, 6 and 17 % in time, `fcfs` 33, 24 and 37."""
    told = {"RATE": rate, "DEADLINE": deadline_ms, "DEVICES": devices}
    text = SHORT_DEADLINES
    for name, value in told.items():
        text = text.replace(name, str(value))
    experiment = written(tmp_path, text)
    assert on_time(experiment) > 0.8 * on_time(experiment, "fcfs")


class Box:
    """A target that could send one request, behind which the loss is LOST times its weight."""

    LOST = 3.0

    def __init__(self, uneven: float = 1.0, per_ms: float = 1.0, cheaper: float = LOST) -> None:
        self.cheaper = cheaper
        self.view = SimpleNamespace(now_ns=0, has_peers=False)
        self.some_dear = False
        coming = SimpleNamespace(uneven=uneven, all_expected=lambda ns: per_ms * ns / MS)
        meanwhile = SimpleNamespace(lost_to_cheaper=lambda batch: self.cheaper)
        self.patience = Patience(
            cast(Outlook, self), cast(Coming, coming), cast(Meanwhile, meanwhile)
        )

    def waits(self) -> bool:
        one = SimpleNamespace(weight=1.0)
        best = SimpleNamespace(batch=[one], queue=[one], lane_ns=MS)
        worth = (1.0 - self.LOST) / MS
        return self.patience.waits(cast(Candidate, best), worth, self.LOST, [cast(Candidate, best)])

    def wait(self, ms: float, arrived: int, admitted: int) -> None:
        assert self.waits()
        self.view.now_ns += int(ms * MS)
        self.patience.look(arrived)
        for _ in range(admitted):
            self.patience.admitted()


def test_a_target_waits_as_long_as_what_is_expected_comes() -> None:
    box = Box()
    for _ in range(100):
        box.wait(1, arrived=1, admitted=1)
    assert box.waits()


def test_it_does_not_wait_once_nothing_came_several_times() -> None:
    box = Box()
    for _ in range(7):
        box.wait(1, arrived=0, admitted=0)
    assert not box.waits()


def test_it_waits_on_where_fewer_come_than_expected_but_enough_that_the_loss_is_more() -> None:
    box = Box()
    for _ in range(100):
        box.wait(2, arrived=1, admitted=1)
    assert box.waits()
    waited = 0
    while box.waits():
        box.wait(10, arrived=1, admitted=1)
        waited += 1
    assert 1 < waited < 40


def test_one_long_pause_between_bursts_says_little() -> None:
    """Where one in ten gaps is a long one, nothing came in most waits."""
    box = Box(uneven=8.0)
    box.wait(20, arrived=0, admitted=0)
    box.wait(30, arrived=0, admitted=0)
    assert box.waits()


def test_it_does_not_wait_for_what_costs_as_much() -> None:
    assert not Box(cheaper=0.9).waits()
    assert Box(cheaper=1.1).waits()


def test_it_does_not_wait_for_what_is_refused() -> None:
    box = Box()
    for _ in range(23):
        box.wait(1, arrived=1, admitted=0)
    assert not box.waits()


def test_waits_are_tried_again_after_many_arrivals() -> None:
    box = Box()
    for _ in range(7):
        box.wait(1, arrived=0, admitted=0)
    assert not box.waits()
    for _ in range(500):
        box.patience.look(1)
    assert box.waits()
