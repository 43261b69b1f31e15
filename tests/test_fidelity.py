"""The benchmark of the simulator against a box: its plan, its comparison, its simulations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fidelity_points import (
    Comparison,
    Heard,
    Point,
    Round,
    Summary,
    experiment,
    line,
    plan,
    rested_ns,
    simulate,
    slope,
    summary,
    verdict,
)
from replay.caller import Caller
from replay.fleet.model import Device, Fleet, Truth
from replay.fleet.world import Tempo
from replay.simulator import Arrival
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, M, offer

FLEET = Fleet("f", (Device(TargetSpec("cpu:0", (offer("detect"), offer("segment"), offer("m")))),))


def compared(live_pct: float, simulated_pct: float, live_p99: float, simulated_p99: float):
    live = Summary(100, live_pct, 1.0, live_p99, {"completed": live_pct})
    simulated = replace(live, on_time_pct=simulated_pct, p99_ms=simulated_p99)
    paces = {"cpu:0": 1.0}
    return Comparison(
        Point(1.0, 3.0, 8.0),
        live,
        simulated,
        replace(live, on_time_pct=live_pct + 1),
        replace(live, on_time_pct=live_pct - 4),
        [simulated_pct - live_pct],
        0.5,
        paces,
        paces,
        3.0,
        0.1,
    )


def test_each_round_has_every_point_once_in_another_order_by_chance():
    points = plan(None, 1, 1)
    assert len(points) == len(set(points)) >= 20
    assert set(plan(None, 2, 1)) == set(points)
    assert plan(None, 1, 2) != points != plan(None, 2, 1)
    assert len(plan(5, 1, 1)) == 5
    assert set(plan(5, 1, 2)) == set(plan(5, 1, 1))
    assert {p.load for p in points} >= {0.6, 1.0, 1.5}
    assert len({p.cv for p in points}) > 1
    assert len({p.scale for p in points}) > 1


def test_the_rounds_of_a_point_count_as_one():
    good, bad = Heard("completed", True, 5 * MS), Heard("expired", False, 9 * MS)
    first = Round([good], [good], [[good], [bad]], [bad], {"cpu:0": 1.0}, {"cpu:0": 1.2}, 2.0, 0.1)
    second = replace(first, live=[bad], predicted=[[good], [good]], others_pct=4.0, late_ms=0.3)
    found = Comparison.of(Point(1.0, 3.0, 8.0), [first, second])
    assert (found.live.requests, found.live.on_time_pct) == (2, 50.0)
    assert (found.replayed.requests, found.replayed.on_time_pct) == (2, 100.0)
    assert (found.predicted.requests, found.predicted.on_time_pct) == (2, 75.0)
    assert found.profile_only.on_time_pct == 0
    assert found.rounds_pct == [0.0, 100.0]
    assert found.chance_pct == 25.0
    assert (found.paces, found.own_paces) == ({"cpu:0": 1.0}, {"cpu:0": 1.2})
    assert (found.others_pct, found.late_ms) == (3.0, 0.3)


def test_what_came_of_requests_is_summed_up():
    in_time = [Heard("completed", True, i * MS) for i in range(1, 9)]
    found = summary([*in_time, Heard("late", False, 99 * MS), Heard("infeasible", False, 0)])
    assert (found.requests, found.on_time_pct) == (10, 80.0)
    assert (found.p50_ms, found.p99_ms) == (5.0, 8.0)
    assert found.outcomes_pct == {"completed": 80.0, "late": 10.0, "infeasible": 10.0}
    assert summary([Heard("expired", False, 0)]).p99_ms == 0


def test_the_verdict_takes_errors_of_both_signs():
    too_kind, too_strict = compared(80, 82, 100, 110), compared(80, 79, 100, 96)
    found = verdict([too_kind, too_strict])
    assert found["replayed_on_time_mean_abs_pct"] == 1.5
    assert found["replayed_on_time_max_abs_pct"] == 2
    assert found["replayed_on_time_bias_pct"] == 0.5
    assert found["replayed_p99_mean_abs_pct"] == pytest.approx(7)
    assert found["replayed_p99_max_abs_pct"] == pytest.approx(10)
    assert found["predicted_on_time_mean_abs_pct"] == 1
    assert found["profile_only_on_time_bias_pct"] == -4
    assert "+2.00" in line(too_kind)
    assert "-1.00" in line(too_strict)


def test_a_slope_is_by_least_squares_and_never_below_0():
    assert slope([1, 2, 3], [5, 7, 9]) == pytest.approx(2)
    assert slope([1, 2, 3], [9, 7, 5]) == 0


def test_the_requests_of_a_point_have_its_load_and_deadlines():
    source = experiment(Point(0.5, 1.0, 8.0), FLEET, 20.0)
    arrivals = list(source.arrivals(1))
    assert all(18 * MS <= a.budget_ns <= 30 * MS for a in arrivals)
    assert {a.kind.model: a.size_bytes for a in arrivals} == {"detect": 20_000, "segment": 10_000}
    assert list(source.arrivals(1)) == arrivals != list(source.arrivals(2))


def test_what_is_played_first_is_not_counted():
    requests = [Arrival(0, M, 100 * MS), Arrival(50 * MS, M, 4 * MS)]
    warm = simulate(FLEET, "edf", requests, Caller(), 1, [Arrival(0, M, 1)] * 3)
    assert warm == simulate(FLEET, "edf", requests, Caller(), 1)


def test_what_follows_a_simulation_s_beginning_meets_devices_as_they_are_then():
    first, requests = [Arrival(0, M, 20 * MS)] * 3, [Arrival(0, M, 100 * MS)]
    begun_ns = rested_ns(first)
    usual_ns = {("m", "v", 1): 10 * MS}
    tempo = Tempo(((0, 2.0), (10 * MS, 1.0)), usual_ns, 10**12, -begun_ns)
    fleet = replace(FLEET, devices=(replace(FLEET.devices[0], truth=Truth(tempo=tempo)),))
    (slowed,) = simulate(fleet, "edf", requests, Caller(), 1, first)
    assert slowed.latency_ns == 20 * MS


def test_a_simulation_hears_with_the_ears_of_the_caller():
    requests = [Arrival(0, M, 100 * MS), Arrival(50 * MS, M, 4 * MS)]
    near = simulate(FLEET, "edf", requests, Caller(), 1)
    far = simulate(FLEET, "edf", requests, Caller(2 * MS, 3 * MS, 6 * MS), 1)
    assert [heard.on_time for heard in near] == [True, True]
    assert [heard.on_time for heard in far] == [True, False]
    assert far[0].latency_ns == near[0].latency_ns + 5 * MS
