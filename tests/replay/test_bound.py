"""The bounds: above everything that can be done, and no higher than they must be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clairvoyant import Annealing
from benchmarks.optimum import played
from policies import POLICIES, make_policy
from replay.bound import Conditions, exact_bound, fluid_bound, whole_bound
from replay.bound.whole import _search
from replay.simulator import Arrival, Simulator
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
A, B = RequestClass("a"), RequestClass("b")
SIZES = (1, 2, 4, 8)
CLOSE = 1e-6

Ladders = dict[str, dict[int, tuple[int, ...]]]


def target(name: str, ladders: Ladders) -> TargetSpec:
    """A target with the latencies of each model, in ms."""
    offers = [
        Offer(model, "v", "runtime", {size: tuple(ms * MS for ms in times) for size, times in own})
        for model, own in ((model, ladder.items()) for model, ladder in ladders.items())
    ]
    return TargetSpec(name, tuple(offers))


def linear(name: str, curves: dict[str, tuple[float, float]], sizes=SIZES) -> TargetSpec:
    """A target whose batches take a base time and a time for each item, in ms."""
    offers = [
        Offer(model, "v", "runtime", {n: (int((base + item * n) * MS),) for n in sizes})
        for model, (base, item) in curves.items()
    ]
    return TargetSpec(name, tuple(offers))


def test_a_workload_of_very_short_batches_is_bounded_at_once(monkeypatch):
    monkeypatch.setattr("replay.bound.whole._search", lambda *_: pytest.fail("searched"))
    fleet = [linear("cpu:0", {"a": (0.01, 0.01)}, sizes=(1,))]
    arrivals = [Arrival(i * MS, A, 10_000 * (i > 0)) for i in range(300)]
    assert whole_bound(arrivals, fleet).value == 0
    arrivals = [Arrival(i * MS // 100, A, 300 * MS * (i > 0)) for i in range(300)]
    assert whole_bound(arrivals, fleet).value == 299


def poisson(count: int, per_ms: float, budgets_ms=(15, 25, 50), models="aab", seed=1):
    chance = random.Random(seed)
    at_ms = 0.0
    for _ in range(count):
        at_ms += chance.expovariate(per_ms)
        kind = RequestClass(chance.choice(models))
        weight = float(chance.choice((1, 1, 3)))
        yield Arrival(int(at_ms * MS), kind, int(chance.choice(budgets_ms) * MS), weight=weight)


def in_time(name: str, arrivals: Sequence[Arrival], fleet: Sequence[TargetSpec], seed=3):
    """The endings in time under a policy, when service times are drawn from the offers."""
    chance = random.Random(seed)
    offers = {(spec.id, offer.model): offer for spec in fleet for offer in spec.offers}

    def service_ns(run, _kind):
        offer = offers[run.target_id, run.model]
        return chance.choice(offer.latency_ns[offer.size_for(len(run.request_ids))])

    simulator = Simulator(make_policy(name), fleet, service_ns)
    return [ending for ending in simulator.run(arrivals) if ending.in_time]


ONE = [linear("cpu:0", {"a": (2, 1), "b": (4, 3)})]
MIXED = [*ONE, linear("gpu:0", {"a": (4, 0.5), "b": (6, 1)}), linear("cpu:1", {"a": (3, 2)})]
SINGLE = [linear("cpu:0", {"a": (0, 5)}, (1,))]


# -- every schedule of small instances


def brute_force(
    arrivals: Sequence[Arrival],
    fleet: Sequence[TargetSpec],
    conditions: dict[str, Conditions],
    weighted: bool,
) -> float:
    """The best of all schedules, found by trying every sequence of batches on every target."""

    @cache
    def best(place: int, free_ns: int, left: frozenset[int]) -> float:
        if place == len(fleet):
            return 0.0
        spec = fleet[place]
        given = conditions.get(spec.id, Conditions())
        value = best(place + 1, 0, left)
        for offer in spec.offers:
            own = [i for i in left if arrivals[i].kind.model == offer.model]
            for size, (service_ns,) in offer.latency_ns.items():
                for batch in (b for n in range(1, size + 1) for b in combinations(own, n)):
                    ready_ns = max([free_ns, *(arrivals[i].at_ns + given.out_ns for i in batch)])
                    for from_ns, before_ns, by_ns, factor in given.phases():
                        begin_ns = max(ready_ns, from_ns)
                        end_ns = begin_ns + int(service_ns * factor)
                        if begin_ns >= before_ns or end_ns > by_ns:
                            continue
                        gained = sum(
                            arrivals[i].weight if weighted else 1.0
                            for i in batch
                            if end_ns + given.back_ns <= arrivals[i].at_ns + arrivals[i].budget_ns
                        )
                        if gained:
                            rest = best(place, end_ns, left - frozenset(batch))
                            value = max(value, gained + rest)
        return value

    return best(0, 0, frozenset(range(len(arrivals))))


times_ms = st.integers(1, 9)
ladders = st.fixed_dictionaries({1: st.tuples(times_ms)}, optional={2: st.tuples(times_ms)})
specs = st.fixed_dictionaries({"a": ladders}, optional={"b": ladders})
requests = st.builds(
    lambda at, kind, budget, weight: Arrival(at * MS, kind, budget * MS, weight=float(weight)),
    st.integers(0, 12),
    st.sampled_from((A, A, B)),
    st.integers(0, 20),
    st.integers(1, 3),
)


def workloads(size: int):
    """Up to so many requests, in order of time."""
    return st.lists(requests, max_size=size).map(lambda found: sorted(found, key=lambda a: a.at_ns))


ways = st.builds(
    lambda out, back, up, slow: Conditions(
        out * MS,
        back * MS,
        None if up is None else tuple((a * MS, (a + length) * MS) for a, length in up),
        slowdown=tuple((at * MS, factor) for at, factor in slow),
    ),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from((None, None, ((0, 7), (8, 6), (14, 20)), ((3, 30),))),
    st.sampled_from(((), (), ((4, 2.0),), ((-1, 3.0), (6, 0.5), (12, 1.0)))),
)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=workloads(5),
    fleet=st.lists(specs, min_size=1, max_size=2),
    way=ways,
    weighted=st.booleans(),
    block=st.sampled_from((1, 2, 500)),
    rounds=st.sampled_from((0, 4)),
)
def test_exact_is_the_best_of_all_schedules_and_the_others_are_not_below(
    arrivals, fleet, way, weighted, block, rounds
):
    targets = [target(f"cpu:{i}", own) for i, own in enumerate(fleet)]
    conditions = {"cpu:0": way}
    optimum = brute_force(arrivals, targets, conditions, weighted)
    exact = exact_bound(arrivals, targets, conditions=conditions, weighted=weighted)
    assert exact.exact
    assert exact.value == pytest.approx(optimum)
    fluid = fluid_bound(
        arrivals, targets, conditions=conditions, weighted=weighted, block=block, rounds=rounds
    )
    assert fluid.value >= optimum - CLOSE
    assert fluid.value <= fluid.possible <= fluid.offered == exact.offered
    whole = whole_bound(
        arrivals, targets, conditions=conditions, weighted=weighted, rounds=5 * rounds
    )
    assert optimum - CLOSE <= whole.value <= fluid.possible + CLOSE
    assert whole.offered == exact.offered


@settings(max_examples=40, deadline=None)
@given(
    arrivals=workloads(6),
    fleet=st.lists(specs, min_size=1, max_size=2),
    more=specs,
    starts=st.sampled_from((1, 10, 30)),
)
def test_neither_more_capacity_nor_a_coarser_grid_lowers_the_bound(arrivals, fleet, more, starts):
    few = [target(f"cpu:{i}", own) for i, own in enumerate(fleet)]
    many = [*few, target("gpu:0", more)]
    optimum = exact_bound(arrivals, few).value
    assert exact_bound(arrivals, many).value >= optimum
    assert fluid_bound(arrivals, many).value >= optimum - CLOSE
    assert whole_bound(arrivals, many, rounds=10).value >= optimum - CLOSE
    coarse = exact_bound(arrivals, few, starts=starts)
    assert coarse.value >= optimum
    assert coarse.grid_ns == 1 or not coarse.exact


# -- every way to go on, where service times are random


def expected_optimum(arrivals: Sequence[Arrival], spec: TargetSpec, way: Conditions) -> float:
    """The most that one target can be expected to finish by someone who knows all arrivals."""

    @cache
    def best(free_ns: int, left: frozenset[int]) -> float:
        value = 0.0
        for offer in spec.offers:
            own = [i for i in left if arrivals[i].kind.model == offer.model]
            for size, samples in offer.latency_ns.items():
                for batch in combinations(own, size):
                    ready_ns = max([free_ns, *(arrivals[i].at_ns + way.out_ns for i in batch)])
                    for from_ns, before_ns, by_ns, factor in way.phases():
                        begin_ns = max(ready_ns, from_ns)
                        if begin_ns >= before_ns:
                            continue
                        outcomes = []
                        for sample_ns in samples:
                            end_ns = begin_ns + int(sample_ns * factor)
                            gained = sum(
                                arrivals[i].weight
                                for i in batch
                                if end_ns <= by_ns
                                and end_ns + way.back_ns
                                <= arrivals[i].at_ns + arrivals[i].budget_ns
                            )
                            rest = best(min(end_ns, by_ns), left - frozenset(batch))
                            outcomes.append(gained + rest)
                        value = max(value, sum(outcomes) / len(outcomes))
        return value

    return best(0, frozenset(range(len(arrivals))))


samples_ms = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)
chancy = st.fixed_dictionaries({1: samples_ms}, optional={2: samples_ms})


@settings(max_examples=100, deadline=None)
@given(
    arrivals=workloads(4),
    ladders=st.fixed_dictionaries({"a": chancy}, optional={"b": chancy}),
    way=ways,
)
def test_with_random_service_times_no_bound_is_below_the_expected_optimum(arrivals, ladders, way):
    spec = target("cpu:0", ladders)
    optimum = expected_optimum(arrivals, spec, way)
    for bound in (fluid_bound, whole_bound):
        found = bound(arrivals, [spec], conditions={"cpu:0": way}, weighted=True)
        assert found.value >= optimum - CLOSE


def test_a_larger_batch_that_is_as_quick_on_average_is_no_better_than_one_that_is_sure():
    """Found by the property above: one of two that may be late takes 2 ms on average as well."""
    spec = target("cpu:0", {"a": {1: (2,), 2: (1, 3)}})
    arrivals = [Arrival(0, A, 2 * MS)]
    assert expected_optimum(arrivals, spec, Conditions()) == 1
    assert whole_bound(arrivals, [spec]).value == pytest.approx(1)


# -- policies


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("fleet", "per_ms"), [("one", 0.5), ("single", 0.25)])
def test_no_policy_beats_the_bounds_of_a_small_workload(fleet, per_ms, seed):
    targets, models = (ONE, "aab") if fleet == "one" else (SINGLE, "a")
    arrivals = [
        Arrival(a.at_ns // MS * MS, a.kind, a.budget_ns)
        for a in poisson(9, per_ms, models=models, seed=seed)
    ]
    exact = exact_bound(arrivals, targets)
    assert exact.exact
    assert exact.value <= fluid_bound(arrivals, targets).value + CLOSE
    assert exact.value <= whole_bound(arrivals, targets).value + CLOSE
    for name in POLICIES:
        assert len(in_time(name, arrivals, targets)) <= exact.value


@pytest.mark.parametrize("per_ms", [0.8, 2.0, 5.0])
def test_no_policy_beats_the_bounds_however_they_are_computed(per_ms):
    arrivals = list(poisson(300, per_ms))
    options: list[dict[str, Any]] = [
        {"weighted": weighted, "block": block, "rounds": rounds}
        for weighted in (False, True)
        for block, rounds in ((50, 0), (170, 2), (500, 4))
    ]
    bounds = [(way["weighted"], fluid_bound(arrivals, MIXED, **way).value) for way in options]
    bounds += [(w, whole_bound(arrivals, MIXED, weighted=w).value) for w in (False, True)]
    for name in POLICIES:
        endings = in_time(name, arrivals, MIXED)
        for weighted, bound in bounds:
            done = sum(ending.arrival.weight if weighted else 1 for ending in endings)
            assert done <= bound + CLOSE


def test_with_random_service_times_the_mean_over_many_runs_is_not_above():
    chance = random.Random(5)
    ladder = {
        n: tuple(int((2 + n) * chance.lognormvariate(0, 0.5) * MS) + 1 for _ in range(20))
        for n in (1, 2, 4)
    }
    fleet = [TargetSpec("cpu:0", (Offer("a", "v", "runtime", ladder),))]
    arrivals = list(poisson(60, 0.6, models="a"))
    bound = min(fluid_bound(arrivals, fleet).value, whole_bound(arrivals, fleet).value)
    most = exact_bound(arrivals, fleet, starts=300, time_limit_s=5).value
    for name in ("edf", "goodput"):
        runs = [len(in_time(name, arrivals, fleet, seed)) for seed in range(30)]
        mean = sum(runs) / len(runs)
        error = sqrt(sum((run - mean) ** 2 for run in runs)) / len(runs)
        assert mean - 2 * error <= bound, name
        assert max(runs) <= most, name


# -- tightness


@pytest.mark.parametrize(("scale", "least"), [(1.5, 0.97), (2.0, 0.95), (5.0, 0.97)])
def test_with_one_kind_of_request_it_is_little_more_than_what_edf_does(scale, least):
    """For requests that are alike, on one device, earliest deadline first is near the optimum."""
    arrivals = list(poisson(600, 0.18, budgets_ms=(5 * scale,), models="a"))
    done = len(in_time("edf", arrivals, SINGLE))
    assert done >= least * fluid_bound(arrivals, SINGLE, block=500).value


def test_at_many_times_the_load_it_is_what_the_device_can_do_at_best():
    """Full batches without a break, and nothing else."""
    arrivals = [Arrival(i * MS // 10, A, 100 * MS) for i in range(4_000)]
    fleet = [linear("cpu:0", {"a": (2, 1)})]
    best = 500 / 10 * 8  # batches of 8 in 10 ms, from the first arrival to the last deadline
    for rounds in (0, 4):
        bound = fluid_bound(arrivals, fleet, block=500, rounds=rounds).value
        assert bound == pytest.approx(best, rel=0.04)


def test_what_is_certain_is_the_bound():
    arrivals = [Arrival(i * 10 * MS, A, 9 * MS) for i in range(1_000)]
    bound = fluid_bound(iter(arrivals), SINGLE, block=64)
    assert bound.value == bound.possible == bound.offered == bound.requests == 1_000
    assert bound.share == 1.0


@pytest.mark.parametrize("per_ms", [0.6, 1.5])
def test_whole_batches_of_mixed_classes_bound_closer_than_fractions_of_them(per_ms):
    arrivals = list(poisson(100, per_ms))
    whole, fluid = whole_bound(arrivals, MIXED).value, fluid_bound(arrivals, MIXED).value
    assert whole <= fluid
    assert max(len(in_time(name, arrivals, MIXED)) for name in POLICIES) <= whole


def test_long_idle_times_cost_whole_bound_neither_time_nor_truth():
    alone = [Arrival(at, A, 12 * MS) for at in (0, 0, 0, MS)]
    far = [Arrival(a.at_ns + (1 << 58), a.kind, a.budget_ns) for a in alone]
    assert whole_bound([*alone, *far], SINGLE).value == pytest.approx(
        2 * whole_bound(alone, SINGLE).value
    )


def test_more_that_wait_at_once_than_memory_has_room_for_are_the_fluids(monkeypatch):
    arrivals = [Arrival(0, A, 500 * MS) for _ in range(200)]
    assert whole_bound(arrivals, SINGLE, rounds=1).value < 200
    monkeypatch.setattr("replay.bound.whole._WIDEST", 100)
    assert whole_bound(arrivals, SINGLE, rounds=1).value == 200


def spread(name: str, base_ms: float) -> TargetSpec:
    """A target whose batches take from half to twice as long as most do."""
    ladder = {
        size: tuple(int((base_ms + size) * MS * 2 ** (n / 8 - 1)) for n in range(17))
        for size in (1, 2, 4)
    }
    return TargetSpec(name, (Offer("a", "v", "runtime", ladder),))


def test_fares_are_improved_for_random_service_times(monkeypatch):
    sought = []

    def search(worth, fares, devices, rounds, aim):
        found = _search(worth, fares, devices, rounds, aim)
        sought.append((devices, fares, found))
        return found

    monkeypatch.setattr("replay.bound.whole._search", search)
    arrivals = list(poisson(150, 1.6, models="a", budgets_ms=(8, 15, 25)))
    whole_bound(arrivals, [spread("cpu:0", 3), spread("gpu:0", 1)])
    devices, fares, (value, better) = sought[-1]
    for device in devices:
        for paid in (fares, better):
            earned, count = device.served(paid)
            assert earned == pytest.approx(device.most(paid)) == pytest.approx(float(paid @ count))
    before = len(arrivals) - sum(fares) + sum(device.most(fares) for device in devices)
    assert value < 0.999 * before


def test_certain_service_times_are_not_divided(monkeypatch):
    searches = []

    def search(worth, *given):
        searches.append(given)
        return _search(worth, *given)

    monkeypatch.setattr("replay.bound.whole._search", search)
    whole_bound(list(poisson(30, 0.8)), MIXED)
    assert len(searches) == 2  # from two beginnings


# -- somebody who does as well


@pytest.mark.parametrize("seed", range(4))
def test_a_clairvoyant_search_finds_the_optimum_of_small_workloads_and_no_more(seed):
    arrivals = list(poisson(8, 0.6, seed=seed))
    optimum = exact_bound(arrivals, ONE)
    assert optimum.exact
    assert Annealing(arrivals, ONE, seed).improve(3_000) == optimum.value


def test_a_clairvoyant_search_begins_with_what_it_is_given_and_stays_below_the_bounds():
    arrivals = list(poisson(60, 3))
    search = Annealing(arrivals, MIXED, seed=1)
    search.take(0, [0])
    assert search.value == 1
    found = search.improve(5_000)
    assert len(in_time("edf", arrivals, MIXED)) <= found <= whole_bound(arrivals, MIXED).value


def test_a_schedule_to_begin_with_may_have_batches_between_two_sizes():
    arrivals = [Arrival(at_ms * MS, A, 40 * MS) for at_ms in (0, 1, 2, 3)]
    fleet = [target("cpu:0", {"a": {1: (9,), 4: (10,)}})]
    finished, runs = played("fcfs", fleet, arrivals)
    assert finished == 4
    assert [run.request_ids for run in runs] == [(1,), (2, 3, 4)]


# -- service times


def test_a_gamble_is_worth_its_odds_and_not_its_mean():
    """2 or 20 ms with even odds, 10 ms left: half of all tries are done after 2 ms."""
    fleet = [target("cpu:0", {"a": {1: (2, 20)}})]
    together = [Arrival(0, A, 10 * MS) for _ in range(20)]
    expected = sum(0.5**n for n in range(1, 6))  # the first that takes 20 ms is the last
    bound = fluid_bound(together, fleet).value
    assert bound == pytest.approx(10 / 4)  # 2 ms for each try, and every other one a success
    assert bound >= expected
    assert whole_bound(together, fleet).value == pytest.approx(expected)
    assert exact_bound(together, fleet).value == 5
    assert not exact_bound(together, fleet).exact


def test_true_times_can_differ_from_measured_ones():
    def slow(_target_id: str, offer: Offer, size: int) -> list[int]:
        return [2 * ns for ns in offer.latency_ns[size]]

    arrivals = [Arrival(0, A, 20 * MS) for _ in range(10)]
    assert exact_bound(arrivals, SINGLE).value == 4
    assert exact_bound(arrivals, SINGLE, times=slow).value == 2
    assert fluid_bound(arrivals, SINGLE, times=slow).value == pytest.approx(2)
    assert whole_bound(arrivals, SINGLE, times=slow).value == pytest.approx(2)


# -- conditions


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (Conditions(), 4),
        (Conditions(parallel=3), 10),
        (Conditions(out_ns=6 * MS), 2),
        (Conditions(back_ns=16 * MS), 0),
        (Conditions(up=((0, 4 * MS), (7 * MS, 13 * MS))), 1),
        (Conditions(up=((-MS, 5 * MS), (5 * MS, 10 * MS))), 2),
        (Conditions(slowdown=((5 * MS, 3.0),)), 2),
        (Conditions(slowdown=((-MS, 4.0), (10 * MS, 0.5))), 4),
    ],
)
def test_conditions_take_their_share(conditions, expected):
    arrivals = [Arrival(0, A, 20 * MS) for _ in range(10)]
    exact = exact_bound(arrivals, SINGLE, conditions={"cpu:0": conditions})
    assert exact.value == expected
    assert exact.exact
    fluid = fluid_bound(arrivals, SINGLE, conditions={"cpu:0": conditions}).value
    assert expected - CLOSE <= fluid <= expected + 3
    whole = whole_bound(arrivals, SINGLE, conditions={"cpu:0": conditions}).value
    assert whole == pytest.approx(expected, abs=0.01)


def test_targets_that_are_alike_are_worth_their_number():
    arrivals = [Arrival(0, A, 20 * MS) for _ in range(10)]
    two = [*SINGLE, linear("cpu:1", {"a": (0, 5)}, (1,))]
    assert exact_bound(arrivals, two).value == 8
    assert fluid_bound(arrivals, two).value == pytest.approx(8)
    assert whole_bound(arrivals, two).value == pytest.approx(8)


def test_fewer_requests_may_share_a_batch_in_the_time_of_a_full_one():
    fleet = [target("cpu:0", {"a": {1: (9,), 4: (10,)}})]
    three = [Arrival(0, A, 10 * MS) for _ in range(3)]
    assert exact_bound(three, fleet).value == 3
    assert exact_bound([*three, Arrival(0, A, 9 * MS)], fleet).value == 3


def test_a_batch_of_more_that_is_as_fast_does_not_replace_one_of_fewer():
    fleet = [target("cpu:0", {"a": {1: (1,), 2: (1,)}})]
    assert exact_bound([Arrival(0, A, MS)], fleet).value == 1


# -- nothing to do, and nonsense


@pytest.mark.parametrize("bound", [exact_bound, fluid_bound, whole_bound])
@pytest.mark.parametrize(
    ("arrivals", "fleet", "expected"),
    [
        ([], SINGLE, 0),
        ([Arrival(0, A, 5 * MS)], [], 0),
        ([Arrival(0, A, 5 * MS)], SINGLE, 1),
        ([Arrival(0, A, 5 * MS - 1)], SINGLE, 0),
        ([Arrival(0, A, 0)], SINGLE, 0),
        ([Arrival(0, A, -3 * MS)], SINGLE, 0),
        ([Arrival(0, B, 50 * MS)], SINGLE, 0),
        ([Arrival(0, A._replace(variant="w"), 50 * MS)], SINGLE, 0),
        ([Arrival(0, A._replace(variant="v"), 50 * MS)], SINGLE, 1),
        ([Arrival(1 << 60, A, 5 * MS)], SINGLE, 1),
        ([Arrival(7, A, 12 * MS)] * 3, SINGLE, 2),
    ],
)
def test_degenerate_workloads(bound, arrivals, fleet, expected):
    found = bound(arrivals, fleet)
    assert expected - CLOSE <= found.value < expected + 1
    assert found.offered == len(arrivals)
    assert found.share == (found.value / len(arrivals) if arrivals else 1.0)


def test_a_budget_over_many_blocks_is_held_open():
    arrivals = [Arrival(i * MS, A, 1_000 * MS if i % 7 == 0 else 8 * MS) for i in range(300)]
    best = fluid_bound(arrivals, SINGLE).value
    done = len(in_time("edf", arrivals, SINGLE))
    assert done <= best + CLOSE
    for block in (3, 20):
        assert fluid_bound(arrivals, SINGLE, block=block).value >= done - CLOSE


def test_the_same_workload_gives_the_same_bound():
    for bound in (fluid_bound, whole_bound):
        first, second = (bound(poisson(300, 2.0), MIXED) for _ in range(2))
        assert first == second


def test_nonsense_is_refused_by_name():
    with pytest.raises(ValueError, match="arrival at 0 ns follows one at 5 ns"):
        fluid_bound([Arrival(5, A, MS), Arrival(0, A, MS)], SINGLE)
    with pytest.raises(ValueError, match="'gpu:7', which is not a target"):
        exact_bound([], SINGLE, conditions={"gpu:7": Conditions()})
    with pytest.raises(ValueError, match="two targets have the id 'cpu:0'"):
        fluid_bound([], [*SINGLE, *SINGLE])
    for nonsense in (
        {"out_ns": -1},
        {"parallel": 0},
        {"up": ((5, 5),)},
        {"up": ((0, 5), (4, 6))},
        {"slowdown": ((0, 0.0),)},
        {"slowdown": ((5, 1.0), (5, 2.0))},
    ):
        with pytest.raises(ValueError, match=r"target|transfer"):
            Conditions(**nonsense)
