"""Who gives way where more comes than can be done, of requests that are served alike."""

from __future__ import annotations

import pytest
import yaml

from scheduler.core.commands import Finish
from scheduler.core.outcomes import Outcome
from tests.core.world import MS, of, outcomes, request, submit
from tests.policies.parts.test_admission import full
from tests.policies.playing import on_time, written

LIGHT = ((2, 9, 1.0), (3, 13, 1.0), (4, 17, 1.0))
"""All that can be done by 17 ms: id, deadline in ms, weight."""


def box(*waiting: tuple[int, float, float], **rest):
    """A target that runs one of 4 ms at a time, with these behind the first."""
    watch = full()
    for request_id, deadline_ms, weight in waiting:
        said = submit(watch, request(request_id, deadline_ms, weight=weight, **rest))
        assert outcomes(said) == {}
    return watch


def test_a_lighter_one_gives_way_and_hears_so_at_once() -> None:
    watch = box(*LIGHT)
    said = submit(watch, request(9, 18, weight=10.0))
    (finish,) = of(Finish, said)
    assert finish.request_id in (2, 3, 4)
    assert finish.outcome is Outcome.INFEASIBLE
    assert finish.reason == "gives way to one of weight 10 that came; its own is 1"
    assert finish.detail["earliest_budget_ms"]["cpu:0"] * MS > 0
    watch.close()


def test_the_lightest_goes_and_no_more_than_needed() -> None:
    watch = box((2, 9, 3.0), (3, 13, 0.5), (4, 17, 2.0))
    assert outcomes(submit(watch, request(9, 18, weight=10.0))) == {3: Outcome.INFEASIBLE}
    watch.close()


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_nobody_gives_way_to_what_is_worth_no_more(weight: float) -> None:
    watch = box(*LIGHT)
    assert outcomes(submit(watch, request(9, 18, weight=weight))) == {9: Outcome.INFEASIBLE}
    watch.close()


def test_those_who_would_have_to_go_may_be_worth_more_together() -> None:
    watch = box((2, 9, 3.0), (3, 13, 3.0), (4, 17, 3.0))
    assert outcomes(submit(watch, request(9, 9.5, weight=2.5))) == {9: Outcome.INFEASIBLE}
    watch.close()


def test_what_comes_later_anyway_need_not_go() -> None:
    """One behind it in the order does not keep it from being in time."""
    watch = box((2, 9, 5.0), (3, 13, 5.0), (4, 17, 5.0), (5, 60, 1.0))
    assert outcomes(submit(watch, request(9, 17.5, weight=4.0))) == {9: Outcome.INFEASIBLE}
    watch.close()


def test_a_more_important_one_does_not_give_way() -> None:
    watch = box(*LIGHT, priority=0)
    assert outcomes(submit(watch, request(9, 18, weight=100.0))) == {9: Outcome.INFEASIBLE}
    watch.close()


def test_what_nobody_could_do_in_time_displaces_nobody() -> None:
    watch = box(*LIGHT)
    assert outcomes(submit(watch, request(9, 7, weight=100.0))) == {9: Outcome.INFEASIBLE}
    watch.close()


@pytest.mark.no_cover
@pytest.mark.parametrize(("load", "share"), [(1.5, 0.84), (3.0, 0.56)])
def test_under_overload_what_weighs_more_is_done(tmp_path, load: float, share: float) -> None:
    """Half of all weigh ten times as much; in order of deadlines 65 and 33 % of it were in time."""
    asked = {"model": "m", "share": 1, "deadline_ms": 60}
    model = {"name": "m", "variant": "v", "base_ms": 10, "per_item_ms": 0, "jitter": 0.05}
    scenario = {
        "about": "One model for users of unlike worth",
        "fleet": {"models": [{**model, "batches": [1]}], "boxes": [{"devices": [{"id": "cpu:0"}]}]},
        "workload": {
            "requests": 2_000,
            "process": "poisson",
            "load": load,
            "mix": [{**asked, "weight": 1}, {**asked, "weight": 10}],
        },
    }
    experiment = written(tmp_path, yaml.safe_dump(scenario))
    for seed in (1, 2):
        assert on_time(experiment, seeds=[seed]) > share
