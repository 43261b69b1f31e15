"""How sure of its latencies the default is, where some batches take far longer than most."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from policies.goodput import Everywhere, Goodput
from policies.hedge import Hedged
from policies.parts.odds import CHOICES, EVERY_NS, MARGIN, RECENT, SPARE, Odds
from policies.spill import Spill
from replay.laws import watched
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.events import Submitted, TargetUp
from scheduler.core.latency import LatencyCurve
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import View, quantile_of, quantiles_of
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, M, offer, request, target

STEADY = Offer("m", "v", "runtime", {1: (4 * MS,)}, 0)
TAIL = Offer("m", "v", "runtime", {1: (4 * MS,) * 18 + (40 * MS,) * 3}, 0)
"""Of 21 batches three take ten times as long as the others."""


def odds(*budgets_ms: float) -> Odds:
    """One that has seen requests with these budgets come."""
    found, view = Odds(), View({}, {})
    found.came(view, [request(i, ms) for i, ms in enumerate(budgets_ms, 1)])
    return found


def chosen(
    of: Odds,
    *curves: LatencyCurve | Offer,
    kind: RequestClass = M,
    way_ms: float = 0,
    is_backed: bool = False,
):
    """What is counted on where these are offered."""
    made = [each if isinstance(each, LatencyCurve) else LatencyCurve(each) for each in curves]
    return of.quantile(kind, [([curve], int(way_ms * MS), 1) for curve in made], is_backed)


@pytest.mark.parametrize(
    ("made", "budget_ms", "quantile"),
    [
        (STEADY, 5, 0.95),
        (STEADY, 100, 0.95),
        (TAIL, 30, 0.8),  # no promise would be given at 0.95
        (TAIL, 60, 0.8),  # a third of those that there are
        (TAIL, 1_000, 0.95),  # there is time for the slow ones too
    ],
)
def test_it_is_less_sure_where_that_refuses_less_than_it_breaks(
    made: Offer, budget_ms: float, quantile: float
) -> None:
    assert chosen(odds(budget_ms), made) == quantile


@pytest.mark.parametrize(("is_backed", "spare"), [(False, SPARE), (True, 0)])
def test_it_is_the_one_with_which_most_would_be_in_time(is_backed: bool, spare: int) -> None:
    """By the formula: the share of promises that is kept, times that of what is promised."""
    kept = [(spare + q) / (spare + 1) for q in CHOICES]
    spread = tuple(int(ms * MS) for ms in range(4, 25))
    curve = LatencyCurve(Offer("m", "v", "runtime", {1: spread}, 0))
    for budget_ms in range(25, 200, 5):
        takes_ns = [curve.ladder(q).latency_ns[0] for q in CHOICES]
        promised = [max(0.0, 1 - ns / (budget_ms * MS)) for ns in takes_ns]
        in_time = [a * b for a, b in zip(kept, promised, strict=True)]
        best = CHOICES.index(chosen(odds(budget_ms), curve, is_backed=is_backed))
        assert in_time[best] * MARGIN >= max(in_time)
        assert best == 0 or in_time[best] > MARGIN * in_time[0]


def test_the_way_takes_its_part_of_the_budget() -> None:
    found = odds(1_000)
    assert chosen(found, TAIL) == 0.95
    assert chosen(found, TAIL, way_ms=960) == 0.8
    assert chosen(found, TAIL, way_ms=1_000) == 0.95


def test_of_what_has_not_come_it_is_sure() -> None:
    assert chosen(odds(30), TAIL, kind=RequestClass("other")) == 0.95


def test_the_budgets_of_late_count() -> None:
    found = odds(30)
    view = View({}, {})
    found.came(view, [request(1, 1_000)])  # of another scheduler
    assert chosen(found, TAIL) == 0.95
    for number in range(RECENT):
        found.came(view, [request(number, 30)])
    assert chosen(found, TAIL) == 0.8


def test_budgets_of_which_some_are_far_do_not_hide_those_that_are_near() -> None:
    assert chosen(odds(30, 30, 30, 10_000), TAIL) == 0.8
    assert chosen(odds(30, *[10_000] * 19), TAIL) == 0.95


def test_who_accepts_late_results_says_nothing_of_budgets() -> None:
    found = odds()
    found.came(View({}, {}), [request(1, 30, accept_late=True)])
    assert chosen(found, TAIL) == 0.95


def test_where_a_steady_device_does_most_a_slow_one_is_not_gambled_with() -> None:
    steady = Offer("m", "v", "runtime", {1: (2 * MS,)}, 0)
    slow = Offer("m", "v", "runtime", {1: (20 * MS,) * 18 + (200 * MS,) * 3}, 0)
    assert chosen(odds(60), slow) == 0.8
    assert chosen(odds(60), slow, steady) == 0.95
    assert chosen(odds(30), TAIL, steady) == 0.8


def test_a_variant_that_is_not_sure_is_not_gambled_with_where_another_is() -> None:
    """Requests would wait behind the preferred variant and expire, though the other had time."""
    slow = Offer("m", "large", "runtime", {1: (8 * MS,) * 17 + (30 * MS,) * 4}, 0)
    quick = Offer("m", "small", "runtime", {1: (MS // 50,)}, 1)
    curves = [LatencyCurve(slow), LatencyCurve(quick)]
    found = odds(20)
    assert found.quantile(M, [(curves[:1], 0, 1)]) < 0.95
    assert found.quantile(M, [(curves, 0, 1)]) == 0.95
    chance = random.Random(1)

    def service_ns(run: Dispatch, _kind: RequestClass) -> int:
        if run.variant == "small":
            return MS // 50
        return (30 if chance.random() < 4 / 21 else 8) * MS

    both = TargetSpec("cpu:0", (slow, quick))
    arrivals = [Arrival(number * MS // 2, M, 20 * MS) for number in range(2_000)]
    endings = list(Simulator(Goodput(), [both], service_ns).run(arrivals))
    assert sum(ending.in_time for ending in endings) > 0.99 * len(endings)


def test_the_batch_size_that_runs_tells_how_far_latencies_spread() -> None:
    steady = {1: (4 * MS,) * 21, 2: (8 * MS,) * 21}
    curve = LatencyCurve(Offer("m", "v", "runtime", steady, 0))
    for number in range(200):
        curve.observe(2, (80 if number % 8 == 0 else 8) * MS, number * MS)
    assert curve.usual_rung() == 1
    assert curve.ladder(0.95).latency_ns[0] < 5 * MS
    assert chosen(odds(30), curve) == 0.8


def test_it_is_less_sure_where_larger_batches_are_in_time_then() -> None:
    """One alone has time enough at any quantile; four at once save time, and need most of it."""
    spread = [0.7 + 0.03 * i for i in range(21)]
    line = {size: tuple(int((20 + 5 * size) * MS * s) for s in spread) for size in (1, 2, 4)}
    batched, single = (Offer("m", "v", "runtime", sizes, 0) for sizes in (line, {1: line[1]}))
    assert chosen(odds(90), single) == 0.95
    assert chosen(odds(90), batched) == 0.5


def test_it_asks_again_now_and_then_about_what_comes() -> None:
    other = RequestClass("other")
    view = View({}, {})
    found = Odds()

    def due(at_ns: int, *kinds: RequestClass) -> list[RequestClass]:
        view.now_ns = at_ns
        found.came(view, [request(i, 9_000, kind) for i, kind in enumerate(kinds, 1)])
        told = list(found.due)
        found.due.clear()
        return told

    assert due(0, M, M) == [M]
    assert due(EVERY_NS - 1, M, other) == [other]
    assert due(EVERY_NS, M, other) == [M]
    assert due(9 * EVERY_NS) == []
    assert due(10 * EVERY_NS, other, M) == [other, M]


def test_a_class_is_asked_about_while_others_come_far_more_often() -> None:
    """Latency spreads only later; the quantile of what comes seldom follows as well."""
    policy = Everywhere()
    scheduler = Scheduler(policy)
    models = {name: Offer(name, "v", "runtime", {1: (4 * MS,)}, 0) for name in ("often", "seldom")}
    scheduler.handle(TargetUp(target("cpu:0", *models.values(), slots=9)), 0)
    (state,) = scheduler.targets.values()
    often, seldom = map(RequestClass, models)

    def submit(number: int, kind: RequestClass, at_ms: int) -> None:
        wanted = request(number, at_ms + 30, kind)
        scheduler.handle(Submitted((wanted,)), at_ms * MS)

    submit(1, seldom, 0)
    assert policy._outlook.bids(seldom)[0].quantile == 0.95
    for number in range(100):
        state.curve(models["seldom"], seldom).observe(1, (4 if number % 7 else 40) * MS, 0)
    for number in range(2, 400):
        submit(number, often, number)
    submit(400, seldom, 400)
    assert policy._outlook.bids(seldom)[0].quantile < 0.95


# -- what comes of it


CAMERA_NS = 1_000_000_000 // 30


def camera(policy: Everywhere, hiccups: float) -> tuple[float, list[Dispatch]]:
    """The share of frames in time, some of which take ten times as long as most; and the runs."""
    rng = random.Random(1)
    runs: list[Dispatch] = []

    def service_ns(run: Dispatch, _kind: RequestClass) -> int:
        runs.append(run)
        usual = 5 * MS * (0.95 + 0.1 * rng.random())
        return int(usual * (10 if rng.random() < hiccups else 1))

    profile = {1: tuple(int(5 * MS * (0.95 + 0.005 * i)) for i in range(21))}
    device = TargetSpec("gpu:0", (Offer("m", "v", "runtime", profile, 0),), 2)
    arrivals = [Arrival(i * CAMERA_NS, M, 33 * MS) for i in range(3_000)]
    watch = watched(policy)
    ended = list(Simulator(watch, [device], service_ns, Limits(story_entries=100)).run(arrivals))
    assert not watch.doomed
    in_time = sum(ending.finish.outcome is Outcome.COMPLETED for ending in ended)
    return in_time / len(ended), runs


@pytest.mark.no_cover
@pytest.mark.parametrize(("hiccups", "share"), [(0.01, 0.96), (0.04, 0.86), (0.1, 0.76)])
def test_a_device_that_hiccups_is_used(hiccups: float, share: float) -> None:
    """A frame after a hiccup is lost as well: at most (1 - hiccups)^2 of all are in time."""
    in_time, _ = camera(Goodput(), hiccups)
    assert share < in_time <= (1 - hiccups) ** 2 + 0.01


@pytest.mark.no_cover
def test_who_asks_for_a_quantile_has_it() -> None:
    policy = Goodput(quantile=0.95)
    in_time, runs = camera(policy, 0.1)
    assert in_time < 0.3
    assert quantiles_of(policy) == (0.95,)
    assert not any("such batches" in run.reason for run in runs)


@pytest.mark.no_cover
def test_the_story_says_how_sure_it_was() -> None:
    _, runs = camera(Goodput(), 0.1)
    told = [run.reason for run in runs if "such batches" in run.reason]
    assert told[-1].endswith("that would be in time, as 80% of such batches are")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["line", "tight"])
def test_nothing_is_sent_that_is_predicted_to_miss_at_what_it_counts_on(name: str) -> None:
    rng = random.Random(name)

    def service_ns(run: Dispatch, _kind: RequestClass) -> int:
        return int(3 * MS * len(run.request_ids) ** 0.5 * rng.lognormvariate(0, 0.8))

    def arrivals() -> Iterator[Arrival]:
        at_ns = 0.0
        for _ in range(3_000):
            at_ns += rng.expovariate(1) * 2 * MS
            budget_ms = rng.uniform(4, 40) if name == "line" else rng.uniform(3, 9)
            yield Arrival(int(at_ns), M, int(budget_ms * MS))

    devices = [target(f"cpu:{i}", offer(item_ms=0.5, spread=0.9)) for i in range(2)]
    watch = watched(Goodput())
    ended = list(Simulator(watch, devices, service_ns, Limits(story_entries=100)).run(arrivals()))
    assert not watch.doomed
    assert sum(ending.finish.outcome is Outcome.COMPLETED for ending in ended) > 1_000


@pytest.mark.parametrize("make", [Goodput, Everywhere, Hedged, Spill])
def test_wrappers_count_on_the_same(make: type) -> None:
    policy = make()
    assert quantile_of(policy) == CHOICES[0]
    assert quantiles_of(policy) == CHOICES
    assert quantiles_of(make(quantile=0.9)) == (0.9,)


def quantiles_with(*others: TargetSpec, spills: bool = False) -> dict[str, float]:
    """By target, what is counted on for a class with tight budgets, beside other targets."""
    policy = Everywhere()
    scheduler = Scheduler(Spill(policy) if spills else policy)
    scheduler.handle(TargetUp(target("cpu:0", TAIL)), 0)
    for spec in others:
        scheduler.handle(TargetUp(spec), 0)
    scheduler.handle(Submitted((request(1, 30),)), 0)
    return {bid.target_id: bid.quantile for bid in policy._outlook.bids(M)}


BACKING = [{"cost_per_request": 0.01}, {"peer": True}]
"""What makes a remote target one that gets what is not sure here."""


@pytest.mark.parametrize("backing", BACKING, ids=["paid", "peer"])
def test_in_front_of_others_it_is_less_sure_if_that_is_wanted(backing: dict[str, Any]) -> None:
    unsteady = TargetSpec("cloud", (TAIL,), 2, remote=True, **backing)
    assert set(quantiles_with(unsteady).values()) == {0.8}
    free = TargetSpec("cloud", (STEADY,), 2, remote=True)
    assert quantiles_with(free) == {"cpu:0": 0.8, "cloud": 0.8}


def test_in_front_of_a_wrapper_it_is_sure() -> None:
    free = TargetSpec("cloud", (STEADY,), 2, remote=True)
    assert quantiles_with(free, spills=True) == {"cpu:0": 0.95}
    assert quantiles_with(spills=True) == {"cpu:0": 0.8}


def asked(per_s: float, budget_ms: float) -> Odds:
    """One that has seen a second of requests at a rate, some time after it began."""
    found, view = Odds(), View({}, {})
    found.came(view, [])
    period_ns = int(1000 * MS / per_s)
    for number in range(1, int(per_s)):
        view.now_ns = 3000 * MS + number * period_ns
        found.came(view, [request(number, view.now_ns / MS + budget_ms)])
        chosen(found, STEADY, TAIL, is_backed=True)
    return found


def test_it_is_sure_of_what_is_asked_for_if_that_is_little() -> None:
    assert chosen(asked(20, 30), STEADY, TAIL, is_backed=True) == 0.95
    assert chosen(asked(400, 30), STEADY, TAIL, is_backed=True) == 0.8
    assert chosen(asked(20, 30), STEADY, TAIL) == 0.8


def test_what_others_ask_for_takes_the_time_too() -> None:
    found, view = Odds(), View({}, {})
    found.came(view, [])
    other = RequestClass("other")
    for number in range(1, 401):
        view.now_ns = 3000 * MS + number * 5 * MS // 2
        kind = M if number % 20 == 0 else other
        found.came(view, [request(number, view.now_ns / MS + 30, kind=kind)])
        chosen(found, STEADY, TAIL, kind=kind, is_backed=True)
    assert chosen(found, STEADY, TAIL, is_backed=True) == 0.8


def test_who_can_be_paid_gets_what_is_not_sure_here() -> None:
    scheduler = Scheduler(Everywhere())
    scheduler.handle(TargetUp(target("cpu:0", TAIL)), 0)
    paid = TargetSpec("cloud", (TAIL,), 2, remote=True, cost_per_request=0.01)
    scheduler.handle(TargetUp(paid), 0)
    sent = [
        command.target_id
        for number, budget_ms in enumerate((100, 30), 1)
        for command in scheduler.handle(Submitted((request(number, budget_ms),)), 0)
        if isinstance(command, Dispatch)
    ]
    assert sent == ["cpu:0", "cloud"]


@pytest.mark.parametrize(("budget_ms", "worth"), [(30, 2.0 * 0.8 / 0.95), (1_000, 2.0)])
def test_others_make_room_for_it_as_far_as_it_would_be_in_time(
    budget_ms: float, worth: float
) -> None:
    policy = Everywhere()
    scheduler = Scheduler(policy)
    scheduler.handle(TargetUp(target("cpu:0", TAIL)), 0)
    scheduler.handle(Submitted((request(1, budget_ms, weight=2.0),)), 0)
    (came,) = policy._coming._came
    assert came[2] == pytest.approx(worth)
