"""The simulator, and through it what the policies are worth on seeded workloads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import exp

import pytest

from policies import POLICIES, make_policy
from replay.simulator import Arrival, Ending, ServiceTime, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.events import TargetDown, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass, Shapes
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
M = RequestClass("m")
SIZES = (1, 2, 4, 8, 16)
NOISE = 0.05
LINEAR = (0.0, 5.0)
BATCHING = ((2.0, 1.0), (4.0, 0.5))
"""Milliseconds per batch, and per item of it."""

Curve = tuple[float, float]


def one_target(curve: Curve) -> TargetSpec:
    chance = random.Random(1)
    base_ms, item_ms = curve
    ladder = {
        size: tuple(
            int((base_ms + item_ms * size) * MS * chance.lognormvariate(0, NOISE))
            for _ in range(30)
        )
        for size in SIZES
    }
    return TargetSpec("cpu:0", (Offer("m", "v", "runtime", ladder),))


def service(curve: Curve) -> ServiceTime:
    chance = random.Random(2)

    def service_ns(dispatch: Dispatch, _kind: RequestClass) -> int:
        mean_ms = curve[0] + curve[1] * len(dispatch.request_ids)
        return int(mean_ms * MS * chance.lognormvariate(0, NOISE))

    return service_ns


def poisson(
    curve: Curve, load: float, count: int, late: bool = False, seed: int = 7
) -> Iterator[Arrival]:
    """Arrivals at a multiple of what the target does in full batches, with three budgets."""
    chance = random.Random(seed)
    per_ms = load * max(size / (curve[0] + curve[1] * size) for size in SIZES)
    at_ms = 0.0
    for _ in range(count):
        at_ms += chance.expovariate(per_ms)
        budget_ns = chance.choice((30, 50, 100)) * MS
        yield Arrival(int(at_ms * MS), M, budget_ns, accept_late=late)


def play(name: str, curve: Curve, load: float, count: int = 2_000, late: bool = False, **options):
    simulator = Simulator(make_policy(name, **options), [one_target(curve)], service(curve))
    endings = list(simulator.run(poisson(curve, load, count, late)))
    simulator.scheduler.validate()
    assert len(endings) == count
    return endings


def share_in_time(endings: list[Ending]) -> float:
    return sum(ending.in_time for ending in endings) / len(endings)


def share_broken(endings: list[Ending]) -> float:
    """Those that were admitted and then not served."""
    broken = [
        ending
        for ending in endings
        if ending.finish.outcome is Outcome.EXPIRED
        or ending.finish.detail.get("stage") == "evicted"
    ]
    return len(broken) / len(endings)


@pytest.mark.parametrize("curve", [LINEAR, *BATCHING])
def test_at_twice_the_load_goodput_mostly_keeps_its_word_and_nearly_reaches_the_bound(curve):
    endings = play("goodput", curve, load=2)
    assert share_in_time(endings) >= 0.9 * 0.5
    assert share_broken(endings) < 0.08


@pytest.mark.parametrize("curve", [LINEAR, *BATCHING])
def test_below_capacity_goodput_refuses_next_to_nothing(curve):
    assert share_in_time(play("goodput", curve, load=0.7)) > 0.99


@pytest.mark.parametrize("curve", [LINEAR, *BATCHING])
def test_at_twice_the_load_fcfs_collapses(curve):
    """Late results are asked for, as the callers of the usual servers do whether they like it or
    not: without that, the laws forbid it to run what is predicted to miss, and it would drop
    instead, which is what saves it."""
    collapsed = share_in_time(play("fcfs", curve, load=2, late=True))
    assert collapsed < 0.8 * share_in_time(play("goodput", curve, load=2))
    assert share_in_time(play("fcfs", LINEAR, load=2, late=True)) < 0.05


def play_lengths(item_shapes: Shapes) -> list[Ending]:
    """Items of 10 to 4,000 elements, half a millisecond and 20 us for each; measured at one.

    They come at a fifth of what the device can do, with four times the time that they need.
    """
    chance = random.Random(4)
    ladder = {size: tuple(500_000 + 1_000 * i for i in range(30)) for size in (1, 2, 4)}
    spec = TargetSpec("cpu:0", (Offer("m", "v", "runtime", ladder, item_shapes=item_shapes),))
    lengths = [int(exp(chance.uniform(2.3, 8.3))) for _ in range(1_500)]
    need_ns = {length: MS // 2 + 20_000 * length for length in lengths}
    arrivals, at_ns = [], 0.0
    for length in lengths:
        at_ns += chance.expovariate(0.2 * len(lengths) / sum(need_ns[each] for each in lengths))
        kind = RequestClass("m", shapes=((length,),))
        arrivals.append(Arrival(int(at_ns), kind, 4 * need_ns[length]))

    simulator = Simulator(
        make_policy("goodput"), [spec], lambda _run, kind: need_ns[kind.shapes[0][0]]
    )
    return list(simulator.run(arrivals))


def test_what_items_of_each_size_take_is_known_apart():
    apart = share_in_time(play_lengths(((1,),)))
    assert apart > 0.85
    assert share_in_time(play_lengths(())) < 0.8 * apart


def test_edf_serves_in_order_of_deadline():
    simulator = Simulator(make_policy("edf"), [one_target(LINEAR)], service(LINEAR))
    budgets = [300, 250, 100, 200, 150]
    endings = list(simulator.run(Arrival(i, M, ms * MS) for i, ms in enumerate(budgets)))
    assert [ending.arrival.budget_ns // MS for ending in endings] == [300, 100, 150, 200, 250]


def test_without_overload_edf_loses_no_more_than_fcfs():
    assert share_in_time(play("edf", LINEAR, load=0.9)) > share_in_time(play("fcfs", LINEAR, 0.9))


def test_one_server_with_exponential_service_behaves_as_the_theory_says():
    """M/M/1, first come first served: P(time in system > t) = exp(-(mu - lambda) t)."""
    chance = random.Random(3)
    mean_ms, load, budget_ms = 10, 0.5, 40
    ladder = {1: tuple(int(mean_ms * MS * q) or 1 for q in (0.5, 1.0, 1.5))}
    spec = TargetSpec("cpu:0", (Offer("m", "v", "runtime", ladder),), slots=1)
    arrivals, at_ms = [], 0.0
    for _ in range(12_000):
        at_ms += chance.expovariate(load / mean_ms)
        arrivals.append(Arrival(int(at_ms * MS), M, 100_000 * MS, accept_late=True))
    simulator = Simulator(
        make_policy("fcfs"),
        [spec],
        lambda run, _kind: int(chance.expovariate(1 / mean_ms) * MS) + 1,
    )
    waits = [ending.at_ns - ending.arrival.at_ns for ending in simulator.run(arrivals)]
    longer = sum(wait > budget_ms * MS for wait in waits) / len(waits)
    assert longer == pytest.approx(exp(-(1 - load) / mean_ms * budget_ms), abs=0.02)
    assert sum(waits) / len(waits) == pytest.approx(mean_ms * MS / (1 - load), rel=0.08)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_same_seed_plays_the_same(name):
    first, second = (repr(play(name, BATCHING[0], 1.3, count=400)) for _ in range(2))
    assert first == second


def test_a_target_that_dies_takes_no_request_with_it():
    """A run that died must not report back, nor hold up the target that replaced it."""
    specs = [one_target(BATCHING[0])]
    simulator = Simulator(make_policy("edf"), specs, service(BATCHING[0]))
    for at_ms in range(20, 400, 40):
        simulator.at(at_ms * MS, TargetDown("cpu:0", "crashed", 5 * MS))
        simulator.at((at_ms + 5) * MS, TargetUp(specs[0]))
    endings = list(simulator.run(poisson(BATCHING[0], 0.3, count=200)))
    ended = Counter(ending.finish.outcome for ending in endings)
    assert sum(ended.values()) == 200
    assert ended[Outcome.COMPLETED] > 150
    simulator.scheduler.validate()


@pytest.mark.parametrize(("at_ns", "budget_ns"), [(10**21, 1), (0, 10**21)])
def test_what_is_beyond_all_time_is_refused(at_ns, budget_ns):
    fast = Offer("m", "v", "runtime", {1: (1_000,)})
    simulator = Simulator(
        make_policy("edf"), [TargetSpec("cpu:0", (fast,))], lambda run, _kind: 1_000
    )
    far = Arrival(at_ns, M, budget_ns)
    with pytest.raises(
        OverflowError, match=r"^a (request|deadline) [0-9,.e+]{1,9} years after the start$"
    ):
        list(simulator.run([Arrival(0, M, 1_000_000), far]))


def test_what_comes_after_the_last_arrival_is_played_too():
    simulator = Simulator(make_policy("edf"), [one_target(LINEAR)], service(LINEAR))
    simulator.at(500 * MS, TargetDown("cpu:0", "unplugged"))
    (ending,) = simulator.run([Arrival(0, M, 50 * MS)])
    assert ending.finish.outcome is Outcome.COMPLETED
    assert not simulator.scheduler.targets["cpu:0"].up


class Slow:
    """A world in which everything takes ten times as long from a time on."""

    def __init__(self, since_ns: int = 0, width: int = 1, way_ns: int | None = None) -> None:
        self.since_ns = since_ns
        self.target_width = width
        self.way_ns = way_ns
        self.sizes: list[int] = []

    def width(self, target_id: str) -> int:
        return self.target_width

    def is_far(self, target_id: str) -> bool:
        return self.way_ns is not None

    def lands_ns(self, target_id: str, size_bytes: int, sent_ns: int) -> int:
        self.sizes.append(size_bytes)
        return sent_ns + (self.way_ns or 0)

    def ends_ns(self, target_id: str, begun_ns: int, service_ns: int) -> int:
        return begun_ns + service_ns * (10 if begun_ns >= self.since_ns else 1)

    def heard_ns(self, target_id: str, ended_ns: int) -> int:
        return ended_ns + (self.way_ns or 0)

    def submit_ns(self, target_id: str) -> int:
        return 0

    def handover_ns(self, target_id: str) -> int:
        return 0


def single(slots: int = 1, width: int = 1) -> TargetSpec:
    offer = Offer("m", "v", "runtime", {1: (10 * MS,)})
    return TargetSpec("cpu:0", (offer,), slots=slots, width=width)


def test_the_scheduler_is_told_how_large_a_request_is():
    simulator = Simulator(make_policy("edf"), [single()], lambda _run, _kind: 10 * MS)
    arrivals = (Arrival(i, M, 100 * MS, size_bytes=1_000) for i in range(3))
    sizes = [simulator.scheduler.ledger.held_bytes for _ in simulator.run(arrivals)]
    assert sizes == [2_000, 1_000, 0]


def test_the_world_changes_how_long_batches_take_and_tells_nobody():
    world = Slow(since_ns=50 * MS)
    simulator = Simulator(make_policy("edf"), [single()], lambda _run, _kind: 10 * MS, world=world)
    first, second = simulator.run([Arrival(0, M, 500 * MS), Arrival(60 * MS, M, 500 * MS)])
    assert (first.at_ns, second.at_ns) == (10 * MS, 160 * MS)
    assert "10" not in second.finish.reason


@pytest.mark.parametrize(("at_once", "ends_ms"), [(True, [12, 12]), (False, [10, 20])])
def test_requests_that_are_read_at_once_can_share_a_batch(at_once, ends_ms):
    spec = TargetSpec("cpu:0", (Offer("m", "v", "runtime", {1: (10 * MS,), 2: (12 * MS,)}),))
    took_ms = {1: 10, 2: 12}
    simulator = Simulator(
        make_policy("edf"),
        [spec],
        lambda run, _kind: took_ms[len(run.request_ids)] * MS,
        at_once=at_once,
    )
    arrivals = [Arrival(0, M, 500 * MS), Arrival(0, M, 500 * MS)]
    assert [ending.at_ns for ending in simulator.run(arrivals)] == [ms * MS for ms in ends_ms]


def test_a_wide_target_runs_batches_at_once():
    arrivals = [Arrival(0, M, 500 * MS), Arrival(1, M, 500 * MS)]
    wide = single(slots=2, width=2)
    simulator = Simulator(
        make_policy("edf"), [wide], lambda _run, _kind: 10 * MS, world=Slow(1 << 60, width=2)
    )
    assert [ending.at_ns for ending in simulator.run(arrivals)] == [10 * MS, 10 * MS + 1]


def test_a_way_there_and_back_takes_time_and_the_target_works_meanwhile():
    world = Slow(1 << 60, way_ns=3 * MS)
    simulator = Simulator(
        make_policy("edf"), [single(slots=2)], lambda _run, _kind: 10 * MS, world=world
    )
    (ending,) = simulator.run([Arrival(0, M, 500 * MS, size_bytes=700)])
    assert ending.at_ns == 16 * MS
    assert world.sizes == [700]


def test_what_is_on_its_way_to_a_target_that_dies_is_lost_and_tried_again():
    world = Slow(1 << 60, way_ns=3 * MS)
    spec = single()
    simulator = Simulator(make_policy("edf"), [spec], lambda _run, _kind: 10 * MS, world=world)
    simulator.at(1 * MS, TargetDown("cpu:0", "unplugged", 4 * MS))
    simulator.at(5 * MS, TargetUp(spec))
    (ending,) = simulator.run([Arrival(0, M, 500 * MS)])
    assert ending.finish.outcome is Outcome.COMPLETED
    assert ending.at_ns == 21 * MS
    simulator.scheduler.validate()


def test_what_waits_at_a_target_far_away_that_dies_is_lost_with_it():
    world = Slow(1 << 60, way_ns=3 * MS)
    spec = replace(single(slots=3), lead_ns=20 * MS)
    simulator = Simulator(make_policy("edf"), [spec], lambda _run, _kind: 10 * MS, world=world)
    simulator.at(8 * MS, TargetDown("cpu:0", "unplugged"))
    endings = list(simulator.run([Arrival(0, M, 500 * MS), Arrival(1, M, 500 * MS)]))
    assert [ending.finish.outcome for ending in endings] == [Outcome.UNAVAILABLE] * 2
    simulator.scheduler.validate()


def test_an_ending_knows_the_batch_that_gave_its_result():
    runs = []
    simulator = Simulator(
        make_policy("edf"),
        [single()],
        lambda _run, _kind: 10 * MS,
        on_run=lambda run, _kind, begun_ns, done_ns: runs.append((run, begun_ns, done_ns)),
    )
    served, refused = simulator.run([Arrival(0, M, 500 * MS), Arrival(1, RequestClass("x"), MS)])
    if served.run is None:
        served, refused = refused, served
    assert runs == [(served.run, 0, 10 * MS)]
    assert refused.run is None
