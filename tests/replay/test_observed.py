"""What a journal says of how long batches took: found again where it is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import Any

import pytest

from policies import make_policy
from replay.experiment import PolicyChoice
from replay.fleet.model import Device, Fleet, FleetError, Truth, way_to
from replay.fleet.sources import load_fleet
from replay.observed import Observation
from replay.planning import Ask, plan
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Command, Dispatch
from scheduler.core.events import BatchDone, Event, Submitted, TargetDown, TargetUp
from scheduler.core.limits import Limits
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import step_of
from scheduler.core.target_specs import TargetSpec, reached_over
from scheduler.daemon.journal import Journal
from scheduler.daemon.journal_writer import JournalBounds
from scheduler.journal_format import Gap
from scheduler.policy_loading import NamedPolicy
from tests.core.world import MS, M, offer

S = 1_000 * MS
NEAR = TargetSpec("cpu:0", (offer(sizes=(1, 2)),))
FAR = replace(reached_over(NEAR, 8 * MS, 1000.0), id="npu:0")
TRUE = {("m", "v", 1): (5 * MS, 6 * MS, 7 * MS), ("m", "v", 2): (9 * MS, 11 * MS)}


Entry = tuple[int, Event, list[Command]]


def entries_of(fleet: Fleet, arrivals: list[Arrival]) -> list[Entry]:
    """What the scheduler of a simulation heard and said."""
    simulator = Simulator(
        make_policy("edf"), fleet.targets(), fleet.service_time(1), world=fleet.world()
    )
    entries: list[Entry] = [(0, TargetUp(spec), []) for spec in fleet.targets()]
    handle = simulator.scheduler.handle

    def noting(event: Event, now_ns: int) -> list[Command]:
        commands = handle(event, now_ns)
        entries.append((now_ns, event, commands))
        return commands

    simulator.scheduler.handle = noting  # type: ignore[method-assign]
    for _ in simulator.run(arrivals):
        pass
    return entries


def busy() -> list[Arrival]:
    """First so few that each runs alone, then so many that batches are full."""
    gaps_ms = [20] * 50 + [5] * 150
    return [Arrival(at_ms * MS, M, 900 * MS, size_bytes=1_000) for at_ms in accumulate(gaps_ms)]


def fleet_of(spec: TargetSpec, **truth: Any) -> Fleet:
    return Fleet("f", (Device(spec, way_to(spec), Truth(times=TRUE, **truth)),))


def seen(spec: TargetSpec, **truth: Any) -> Observation:
    steps = [
        (at_ns, step)
        for at_ns, event, commands in entries_of(fleet_of(spec, **truth), busy())
        for step in (event, *commands)
    ]
    return Observation(steps, [spec])


@pytest.mark.parametrize("spec", [NEAR, FAR], ids=["near", "far"])
def test_what_batches_took_is_found_again(spec):
    found = seen(spec).net_ns(spec.id)
    assert {rung: set(times) for rung, times in found.items()} == {
        rung: set(times) for rung, times in TRUE.items()
    }
    assert len(found["m", "v", 1]) + 2 * len(found["m", "v", 2]) == 200


def test_a_batch_between_two_measured_sizes_counts_as_one_of_the_larger():
    kinds = [Request(number, M, 900 * MS) for number in (1, 2, 3)]
    steps: list[tuple[int, Event | Command | Gap]] = [
        (0, Submitted(tuple(kinds))),
        (0, Dispatch(1, "cpu:0", "m", "v", (1, 2, 3), 0, "")),
        (7 * MS, BatchDone(1)),
    ]
    found = Observation(steps, [replace(NEAR, offers=(offer(sizes=(1, 2, 4, 8)),))])
    assert found.net_ns("cpu:0") == {("m", "v", 4): [7 * MS]}


def test_what_batches_waited_for_others_on_the_way_is_no_time_of_the_device():
    slow_way = replace(reached_over(NEAR, 8 * MS, 5500.0), slots=4, width=2)
    found = seen(slow_way).net_ns(slow_way.id)
    assert sum(map(len, found.values())) > 100
    assert all(set(times) <= set(TRUE[rung]) for rung, times in found.items())


def test_what_items_of_each_size_took_is_told_apart():
    sized = replace(NEAR, offers=(replace(offer(sizes=(1, 2)), item_shapes=((10,),)),))
    short, long = (RequestClass("m", shapes=((length,),)) for length in (10, 1_000))
    true = {("m", "v"): [(step_of(10), 1.0), (step_of(1_000), 40.0)]}
    fleet = fleet_of(sized, sizes=true)
    arrivals = [Arrival(i * S, kind, S) for i, kind in enumerate([short, long] * 60)]
    steps = [(at_ns, x) for at_ns, e, said in entries_of(fleet, arrivals) for x in (e, *said)]
    truth = Observation(steps, [sized]).truth(sized)

    measured, (step, factor) = truth.sizes["m", "v"]
    assert (measured, step) == ((step_of(10), 1.0), step_of(1_000))
    assert factor == pytest.approx(40, rel=0.01)
    assert set(truth.times["m", "v", 1]) == set(TRUE["m", "v", 1])
    takes_ns = Fleet("again", (Device(sized, None, truth),)).service_time(1)
    run = Dispatch(1, "cpu:0", "m", "v", (1,), 0, "")
    assert takes_ns(run, long) == pytest.approx(40 * takes_ns(run, short), rel=0.01)


def test_what_requests_took_from_batches_is_told_apart():
    observation = seen(NEAR, submit_ns=MS // 4)
    truth = observation.truth(NEAR, MS // 4)
    untold = observation.truth(NEAR)
    assert truth.submit_ns == MS // 4
    for rung, times in TRUE.items():
        # A request that comes at the very moment in which a batch begins is on either side of it.
        assert all(min(abs(t - true) for true in times) <= MS // 4 for t in truth.times[rung])
    assert max(untold.times["m", "v", 2]) > max(TRUE["m", "v", 2])


def test_requests_submitted_together_take_time_once():
    requests = [Request(i, M, S) for i in range(3)]
    steps = [(2 * MS, Submitted(tuple(requests[:2]))), (3 * MS, Submitted(tuple(requests[2:])))]
    observation = Observation(steps, [NEAR])
    assert observation.came(0, S) == 2
    assert observation.came(2 * MS, S) == 1


def test_a_size_that_was_hardly_seen_takes_what_was_profiled_at_the_pace_of_the_others():
    observation = seen(NEAR)
    counts = {rung: len(times) for rung, times in observation.net_ns("cpu:0").items()}
    seldom, often = sorted(counts, key=counts.__getitem__)
    truth = observation.truth(NEAR, enough=counts[often])
    profiled = {rung: NEAR.offers[0].latency_ns[rung[2]] for rung in counts}
    assert set(truth.times[often]) == set(TRUE[often])
    factor = median(truth.times[often]) / median(profiled[often])
    assert truth.times[seldom] == tuple(round(t * factor) for t in profiled[seldom])
    assert Observation([], [NEAR]).truth(NEAR).times == profiled


def test_the_pace_is_how_many_times_as_long_batches_took():
    observation = seen(NEAR)
    assert observation.pace("cpu:0", Truth(times=TRUE)) == pytest.approx(1, rel=0.02)
    half = {rung: tuple(t // 2 for t in times) for rung, times in TRUE.items()}
    assert observation.pace("cpu:0", Truth(times=half)) == pytest.approx(2, rel=0.02)
    assert Observation([], [NEAR]).pace("cpu:0", Truth(times=TRUE)) == 1


def test_a_slow_spell_is_in_the_tempo_and_not_in_the_pace():
    observation = seen(NEAR, drift=((1_300 * MS, 3.0), (1_400 * MS, 1.0)))
    assert observation.pace("cpu:0", Truth(times=TRUE)) == pytest.approx(1, rel=0.05)
    tempo = observation.truth(NEAR).tempo
    assert tempo is not None
    first_ns = 20 * MS  # when the first request comes
    factors = {at_ms: tempo.factor(at_ms * MS - first_ns) for at_ms in range(20, 1_750)}
    assert min(factors[at_ms] for at_ms in range(1_320, 1_390)) > 2
    assert max(factors[at_ms] for at_ms in (*range(20, 1_270), *range(1_450, 1_750))) < 1.5


def test_a_size_that_ran_while_the_machine_was_slow_is_not_slow_for_that():
    """Large batches are what runs then."""
    observation = seen(NEAR, drift=((S, 3.0),))
    tempo = observation.truth(NEAR).tempo
    assert tempo is not None
    one, two = ("m", "v", 1), ("m", "v", 2)
    assert 1.2 < tempo.usual_ns[two] / tempo.usual_ns[one] < 2.1  # and not five
    slow, fast = tempo.factor(1_500 * MS), tempo.factor(500 * MS)
    assert slow / fast == pytest.approx(3, rel=0.5)


def test_messages_and_delays_of_small_batches_are_no_pace_for_large_ones():
    """A model of 10 us whose batches take 0.4 ms with their messages, and once 20 ms."""
    small = offer("small", base_ms=0, item_ms=0.01, sizes=(1,))
    spec = TargetSpec("cpu:0", (offer(base_ms=4, sizes=(1,)), small))
    steps: list[tuple[int, Event | Command]] = []
    for number in range(1, 201):
        at_ns, model = number * 40 * MS, "m" if number <= 100 else "small"
        took_ns = 6 * MS if model == "m" else 20 * MS if number == 150 else 4 * MS // 10
        steps += [
            (at_ns, Submitted((Request(number, RequestClass(model), at_ns + S),))),
            (at_ns, Dispatch(number, "cpu:0", model, "v", (number,), 0, "")),
            (at_ns + took_ns, BatchDone(number)),
        ]
    tempo = Observation(steps, [spec]).truth(spec, begin_ns=-40 * MS).tempo
    assert tempo is not None
    usual = {model: ns / MS for (model, _, _), ns in tempo.usual_ns.items()}
    assert usual == {"m": pytest.approx(6, rel=0.25), "small": pytest.approx(0.4, rel=0.25)}
    took_ms = {at: tempo.took_ns(at * 40 * MS, usual["m"] * MS) / MS for at in (50, 120, 150)}
    assert took_ms == {
        50: pytest.approx(6, rel=0.05),
        120: pytest.approx(6, rel=0.25),
        150: pytest.approx(26, rel=0.1),
    }


def alone(*took_ms: tuple[int, int]) -> Observation:
    """Batches of one request each: when they begin, and what they take."""
    steps: list[tuple[int, Event | Command]] = []
    for number, (at_ms, ms) in enumerate(took_ms, 1):
        at_ns = at_ms * MS
        steps += [
            (at_ns, Submitted((Request(number, M, at_ns + 10**12),))),
            (at_ns, Dispatch(number, "cpu:0", "m", "v", (number,), 0, "")),
            (at_ns + ms * MS, BatchDone(number)),
        ]
    return Observation(steps, [NEAR])


def test_one_odd_batch_says_nothing_of_the_hour_before_it():
    hour_ms = 3_600_000
    often = [(at_ms, 5) for at_ms in range(0, 1_000, 20)]
    later = [(hour_ms, 50), *[(hour_ms + at_ms, 5) for at_ms in range(60, 1_000, 20)]]
    tempo = alone(*often, *later).truth(NEAR, begin_ns=0).tempo
    assert tempo is not None
    assert tempo.factor(hour_ms * MS) == 10
    assert tempo.factor(hour_ms * MS // 2) == tempo.factor((hour_ms - 1_001) * MS) == 1
    assert alone((0, 50)).truth(NEAR).tempo is None


def test_a_second_in_which_nothing_ran_was_like_one_of_the_others_with_each_seed():
    tempo = alone(*((5_000 * number, 4 + number % 3) for number in range(30))).truth(NEAR).tempo
    assert tempo is not None

    def paces(seed: int) -> list[float]:
        placed = tempo.placed(seed)
        return [placed.factor(5_000 * number * MS) for number in range(30)]

    assert paces(2) == paces(2) != paces(3)
    assert set(paces(2)) == set(tempo.placed(2).known) == {0.8, 1.0, 1.2}


def test_what_a_target_lost_took_no_time():
    steps: list[tuple[int, Event | Command]] = [
        (0, Submitted((Request(1, M, 500 * MS),))),
        (0, Dispatch(1, "cpu:0", "m", "v", (1,), 0, "")),
        (3 * MS, TargetDown("cpu:0", "unplugged")),
        (4 * MS, Dispatch(2, "cpu:0", "m", "v", (1,), 0, "")),
        (9 * MS, BatchDone(2)),
    ]
    assert Observation(steps, [NEAR]).net_ns("cpu:0") == {("m", "v", 1): [5 * MS]}


def test_after_events_that_are_missing_a_target_is_watched_on():
    steps: list[tuple[int, Event | Command | Gap]] = [
        (0, Dispatch(1, "cpu:0", "m", "v", (1,), 0, "")),
        (2 * MS, Gap(2 * MS, 3)),
        (3 * MS, BatchDone(1)),
        (4 * MS, Dispatch(2, "cpu:0", "m", "v", (2,), 0, "")),
        (9 * MS, BatchDone(2)),
    ]
    assert Observation(steps, [NEAR]).net_ns("cpu:0") == {("m", "v", 1): [5 * MS]}


# -- a journal as a fleet


def test_a_journal_is_a_fleet_whose_batches_take_what_they_took(tmp_path):
    journal = Journal(tmp_path, NamedPolicy("edf", {}), Limits(), JournalBounds(10**6, 2))
    for at_ns, event, commands in entries_of(fleet_of(FAR), busy()):
        journal.note(at_ns, event, commands, NamedPolicy("edf", {}), None)
    journal.close()
    (device,) = load_fleet(tmp_path).devices
    assert device.spec == FAR
    assert device.link == way_to(FAR)
    assert {rung: set(times) for rung, times in device.truth.times.items()} == {
        rung: set(times) for rung, times in TRUE.items()
    }
    assert device.truth.tempo is not None
    assert device.truth.tempo.begin_ns is None


def test_the_requests_of_a_journal_meet_its_targets_as_they_were(tmp_path):
    """Each batch takes what it took, so that the same policy does the same again."""
    entries = entries_of(fleet_of(NEAR, drift=((S // 2, 3.0), (S, 0.5))), busy())
    journal = Journal(tmp_path, NamedPolicy("edf", {}), Limits(), JournalBounds(10**6, 2))
    for at_ns, event, commands in entries:
        journal.note(at_ns, event, commands, NamedPolicy("edf", {}), None)
    journal.close()
    was = [at_ns for at_ns, event, _ in entries if isinstance(event, BatchDone)]
    begin_ns = next(at_ns for at_ns, event, _ in entries if isinstance(event, Submitted))

    def done_ns(seed: int, **ask: Any) -> list[int]:
        (experiment,) = plan(Ask(str(tmp_path), **ask))
        endings = experiment.endings(PolicyChoice.parse("edf"), seed)
        return sorted({ending.at_ns + begin_ns for ending in endings})

    again = done_ns(1)
    assert again == pytest.approx(was, abs=1_000)
    assert done_ns(2) != pytest.approx(again, abs=MS)
    assert done_ns(1, speed=2.0) != pytest.approx(again, abs=MS)
    late = [at_ns + S for at_ns in done_ns(1, slice="1:")]
    assert late[-10:] == pytest.approx(was[-10:], abs=1_000)


def test_a_journal_without_targets_is_no_fleet(tmp_path):
    Journal(tmp_path, NamedPolicy("edf", {}), Limits(), JournalBounds(10**6, 2)).close()
    with pytest.raises(FleetError, match="names no target"):
        load_fleet(tmp_path)
