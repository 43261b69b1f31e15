from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.latency import Calibration
from scheduler.core.policy import View
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import SURE, Run, TargetState
from tests.core.world import MS, offer, target

FIVE = offer(base_ms=5, item_ms=0)


def state(*offers, slots: int = 2) -> TargetState:
    found = TargetState(target("t", *offers, slots=slots))
    found.add_offers(found.spec.offers)
    return found


def run(run_id: int, at_ms: float, expected_ms: float = 5, size: int = 1) -> Run:
    ids = tuple(range(size))
    return Run(run_id, "t", FIVE, ids, set(ids), int(at_ms * MS), int(expected_ms * MS))


def test_runs_are_expected_one_after_the_other():
    busy = state(FIVE, slots=3)
    busy.begin(run(1, 0))
    busy.begin(run(2, 1, expected_ms=3))
    assert busy.free_ns(1 * MS) == 8 * MS
    assert busy.opens_ns() == 7 * MS
    assert not busy.is_open(6 * MS)
    assert busy.is_open(7 * MS)


def test_an_idle_target_is_open_and_free_now():
    assert state(FIVE).free_ns(7) == 7
    assert state(FIVE).is_open(7)


def test_the_longer_a_run_is_overdue_the_longer_it_is_expected_to_take():
    busy = state(FIVE)
    busy.begin(run(1, 0))
    busy.begin(run(2, 0))
    assert busy.free_ns(5 * MS) == 10 * MS
    assert busy.free_ns(6 * MS) == 7 * MS + 5 * MS
    assert busy.free_ns(25 * MS) == 45 * MS + 5 * MS
    assert [busy.overdue_ns(ms * MS) for ms in (4, 5, 25)] == [0, 0, 20 * MS]
    assert state(FIVE).overdue_ns(25 * MS) == 0


def test_a_target_without_a_slot_is_never_open():
    busy = state(FIVE, slots=1)
    busy.begin(run(1, 0))
    assert not busy.is_open(100 * MS)
    busy.end(run(1, 0), 5 * MS, started=True)
    assert busy.is_open(5 * MS)
    busy.up = False
    assert not busy.is_open(5 * MS)


def test_a_run_that_waited_ahead_is_measured_from_its_start():
    busy = state(FIVE)
    first, second = run(1, 0), run(2, 1)
    busy.begin(first)
    busy.begin(second)
    busy.observe(first, 4 * MS)
    busy.end(first, 4 * MS, started=True)
    busy.observe(second, 10 * MS)
    assert busy.curve(FIVE).predict(1, 0.99) == 6 * MS


def test_a_run_that_was_skipped_does_not_shorten_the_one_before_it():
    busy = state(FIVE)
    first, second = run(1, 0), run(2, 1)
    busy.begin(first)
    busy.begin(second)
    busy.end(second, 3 * MS, started=False)
    busy.observe(first, 9 * MS)
    assert busy.curve(FIVE).predict(1, 0.99) == 9 * MS


def test_an_offer_that_is_repeated_keeps_what_was_learned_and_a_new_measurement_does_not():
    learned = state(FIVE)
    learned.observe(run(1, 0), 9 * MS)
    learned.add_offers([offer(base_ms=5, item_ms=0)])
    assert learned.curve(FIVE).predict(1, 0.99) == 9 * MS
    learned.add_offers([offer(base_ms=6, item_ms=0)])
    assert learned.curve(FIVE).predict(1, 0.99) == 6 * MS
    assert [o.latency_ns[1][0] for o in learned.offers["m"]] == [6 * MS]


def test_a_run_of_an_offer_that_was_replaced_teaches_nothing():
    replaced = state(FIVE)
    replaced.add_offers([offer(base_ms=6, item_ms=0, sizes=(1, 2))])
    replaced.observe(run(1, 0, size=8), 30 * MS)
    assert replaced.curve(FIVE).predict(2, 0.99) == 6 * MS


def test_only_what_is_stale_is_forgotten():
    learned = state(FIVE, offer("n", base_ms=1, item_ms=0))
    learned.observe(run(1, 0), 9 * MS)
    later = replace(run(2, 1_990), offer=learned.offers["n"][0])
    learned.last_done_ns = 1_990 * MS
    learned.observe(later, 2_000 * MS)
    assert not learned.refresh(2_009 * MS)
    assert learned.refresh(2_010 * MS)
    assert learned.curve(FIVE).predict(1, 0.99) == 5 * MS
    assert learned.curve(later.offer).predict(1, 0.99) == 10 * MS
    assert not learned.refresh(2_011 * MS)
    assert learned.refresh(4_001 * MS)
    assert not learned.refresh(9_000 * MS)


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("spec", [{}, {"cost_per_request": 1.0, "remote": True}])
def test_only_on_an_idle_device_of_its_own_is_a_refusal_in_vain(
    idle: bool, spec: dict[str, Any]
) -> None:
    slow = TargetState(replace(target("t", FIVE), **spec))
    slow.add_offers([FIVE])
    slow.curve(FIVE).predict(1, 0.95)
    slow.observe(run(1, 0), 90 * MS)
    if not idle:
        slow.begin(run(2, 90))
    slow.refused(RequestClass("m"), 20 * MS)
    assert slow.refresh(1_000 * MS) == (idle and not spec)
    assert slow.refresh(2_091 * MS) != (idle and not spec)


def test_offers_come_in_the_order_of_preference_and_a_caller_may_insist():
    many = state(offer(variant="b", rank=1), offer(variant="z"), offer(variant="a", rank=1))
    assert [o.variant for o in many.usable(RequestClass("m"))] == ["z", "a", "b"]
    assert [o.variant for o in many.usable(RequestClass("m", "b"))] == ["b"]
    assert many.usable(RequestClass("other")) == []


def test_what_is_too_large_is_no_use_there():
    small = TargetState(replace(target("t", FIVE), too_large=(("m", ((3, 9),)),)))
    small.add_offers([FIVE])
    assert small.usable(RequestClass("m", "v", ((3, 9),), alone=4)) == []
    assert small.usable(RequestClass("m", "v", ((3, 8),))) == [FIVE]
    assert small.usable(RequestClass("n", "v", ((3, 9),))) == []


def test_a_target_has_a_slot():
    with pytest.raises(ValueError, match="slots"):
        TargetSpec("t", (FIVE,), slots=0)


def test_a_run_is_not_overdue_because_the_target_is_closed_for_longer():
    closed = state(FIVE)
    closed.begin(run(1, 0, expected_ms=5))
    closed.change(closed.spec, 100 * MS)
    assert closed.free_ns(1 * MS) == 100 * MS
    assert closed.free_ns(99 * MS) == 193 * MS


def test_what_it_held_when_its_slots_became_fewer_is_allowed_until_it_ends():
    held = state(FIVE, slots=3)
    runs = [run(i, 0) for i in (1, 2, 3)]
    for each in runs:
        held.begin(each)
    held.change(replace(held.spec, slots=1), 0)
    assert held.grandfathered == 3
    held.end(runs[0], 5 * MS, started=True)
    assert held.grandfathered == 2


def test_batches_that_run_at_once_are_expected_at_once():
    wide = TargetState(replace(target("t", FIVE, slots=3), width=2))
    wide.begin(run(1, 0))
    assert wide.free_ns(1 * MS) == 1 * MS
    assert wide.is_open(1 * MS)
    wide.begin(run(2, 1, expected_ms=9))
    assert wide.free_ns(1 * MS) == 5 * MS
    wide.begin(run(3, 1))
    assert wide.free_ns(1 * MS) == 10 * MS
    assert wide.opens_ns() == 9 * MS


def test_another_may_start_beside_one_that_starts_now():
    wide = TargetState(replace(target("t", FIVE, slots=4), width=3))
    assert wide.beside_ns(0) == 0
    wide.begin(run(1, 0))
    assert wide.beside_ns(1 * MS) == 1 * MS
    wide.begin(run(2, 1, expected_ms=9))
    assert wide.beside_ns(1 * MS) == 5 * MS
    assert wide.beside_ns(7 * MS) == 9 * MS  # overdue by 2 ms
    wide.begin(run(3, 1))
    assert wide.beside_ns(1 * MS) is None
    assert state(FIVE).beside_ns(0) is None


@pytest.mark.parametrize(("width", "drifts"), [(16, 0), (1, 1)])
def test_a_moment_in_which_all_that_is_on_its_way_is_held_up_is_no_drift(width, drifts):
    """As where the link to a cloud stalls: it was taken to be as slow for 2 s."""
    far = TargetState(replace(target("t", FIVE, slots=16), width=width))
    far.add_offers(far.spec.offers)
    runs = [run(number, 0) for number in range(16)]
    for each in runs:
        far.begin(each)
    for each in runs:
        far.observe(each, 150 * MS)
        far.end(each, 150 * MS, started=False)
    assert far.curve(FIVE).drifts == drifts
    assert (far.curve(FIVE).predict(1, 0.5) > 5 * MS) == (drifts > 0)


@pytest.mark.parametrize("width", [1, 16])
def test_that_all_stays_slow_is_learned_within_a_dozen_rounds_however_many_are_on_their_way(width):
    far = TargetState(replace(target("t", FIVE, slots=16), width=width))
    far.add_offers(far.spec.offers)
    for at in range(256 + 12):
        takes_ms = 5 if at < 256 else 50
        runs = [run(16 * at + number, 100 * at) for number in range(width)]
        for each in runs:
            far.begin(each)
        for each in runs:
            far.observe(each, (100 * at + takes_ms) * MS)
            far.end(each, (100 * at + takes_ms) * MS, started=True)
    assert far.curve(FIVE).predict(1, 0.5) == 50 * MS


def test_a_batch_that_ran_beside_others_is_measured_from_its_own_start():
    wide = TargetState(replace(target("t", FIVE, slots=3), width=2))
    wide.add_offers(wide.spec.offers)
    first, second = run(1, 0), run(2, 1)
    wide.begin(first)
    wide.begin(second)
    wide.observe(first, 5 * MS)
    wide.end(first, 5 * MS, started=True)
    wide.observe(second, 8 * MS)
    assert wide.curve(FIVE).predict(1, 0.99) == 7 * MS


def test_the_way_there_is_no_part_of_what_is_learned():
    far = state(FIVE)
    away = replace(run(1, 0), transfer_ns=20 * MS)
    far.begin(away)
    assert far.free_ns(0) == 25 * MS
    far.observe(away, 26 * MS)
    assert far.curve(FIVE).predict(1, 0.99) == 6 * MS


def test_a_link_that_was_faster_than_usual_makes_no_target_endlessly_fast():
    """A batch is back before it would have arrived, and would seem to have taken no time."""
    far = TargetState(replace(target("t", FIVE), transfer_ns=(20 * MS, 0.0)))
    far.add_offers(far.spec.offers)
    for number in range(100):
        away = replace(run(number, 100 * number), transfer_ns=20 * MS)
        far.begin(away)
        far.observe(away, (100 * number + 15) * MS)
        far.end(away, (100 * number + 15) * MS, started=True)
    ladder = far.curve(FIVE).ladder(0.5)
    assert ladder.latency_ns[0] == 5 * MS // 2
    assert ladder.rate[0] == 2 / (5 * MS)


def test_it_says_how_well_its_predictions_were_kept():
    own = state(FIVE)
    own.curve(FIVE).ladder(0.5)
    for number, took_ms in enumerate((5, 4, 7)):
        own.begin(run(number, 100 * number))
        own.observe(own.runs[number], (100 * number + took_ms) * MS)
        own.end(own.runs[number], (100 * number + took_ms) * MS, started=True)
    assert own.calibration() == [Calibration(0.5, batches=3, kept=2)]


def test_the_next_batch_leaves_as_long_before_as_the_last_one_took_to_get_there():
    state = TargetState(replace(target(slots=3), lead_ns=2 * MS))
    state.begin(run(1, 100))
    done_ns = state.free_ns(100 * MS)
    assert state.opens_ns() == done_ns - 2 * MS
    state.begin(replace(run(2, 100), transfer_ns=30 * MS))
    assert state.opens_ns() == state.free_ns(100 * MS) - 30 * MS


def test_only_one_batch_waits_for_another_on_the_way():
    """What was thought to be under way is gone once all is answered."""
    far = TargetState(replace(target(slots=4), width=4, transfer_ns=(10 * MS, 1.0)))
    far.begin(replace(run(1, 0), transfer_ns=60 * MS))
    assert far.way_wait_ns(20 * MS) == 30 * MS
    assert far.is_open(20 * MS)
    far.begin(replace(run(2, 20), transfer_ns=90 * MS))
    assert far.way_wait_ns(20 * MS) == 80 * MS
    assert far.opens_ns() == 50 * MS
    far.end(far.runs[1], 40 * MS, started=True)
    assert far.opens_ns() == 50 * MS
    far.end(far.runs[2], 41 * MS, started=True)
    assert far.way_wait_ns(41 * MS) == 0
    assert far.is_open(41 * MS)


@pytest.mark.parametrize(
    ("slots", "width", "start_ms"),
    [(4, 2, 25), (3, 2, 25), (2, 2, 45), (2, 1, 45)],
)
def test_where_all_slots_are_taken_the_next_batch_has_its_way_before_it(slots, width, start_ms):
    spec = replace(target(slots=slots), width=width, transfer_ns=(20 * MS, 0.0))
    far = TargetState(spec)
    view = View({}, {"t": far})
    view.now_ns = 5 * MS
    for number in (1, 2):
        far.begin(replace(run(number, 0), transfer_ns=20 * MS))
    assert view.start_ns(far) == start_ms * MS


@pytest.mark.parametrize(
    ("slots", "width", "taken_ms"),
    [(2, 2, 25), (2, 1, 12.5), (5, 1, 5), (20, 2, 5)],
)
def test_a_batch_takes_up_a_lane_on_its_way_where_slots_are_few(slots, width, taken_ms):
    spec = replace(target(slots=slots), width=width, transfer_ns=(20 * MS, 0.0))
    assert spec.lane_ns(5 * MS) == taken_ms * MS
    assert replace(spec, transfer_ns=(0, 0.0)).lane_ns(5 * MS) == 5 * MS


def test_no_lane_gets_anything_while_a_batch_occupies_the_link():
    spec = replace(target(slots=32), width=4, transfer_ns=(1 * MS, 1.0))
    assert spec.lane_ns(8 * MS, link_ns=3 * MS) == 12 * MS


def test_nothing_is_sent_ahead_of_an_end_that_is_uncertain():
    """The longer a batch may take, the more is known once it is done: how much is `SURE`."""
    busy = TargetState(replace(target(slots=3), lead_ns=2 * MS))
    busy.begin(replace(run(1, 0), spread_ns=SURE * 2 * MS))
    assert busy.opens_ns() == 3 * MS
    busy.begin(replace(run(2, 3), spread_ns=1))
    assert busy.opens_ns() is None
    assert not busy.is_open(100 * MS)
    busy.end(busy.runs[1], 5 * MS, started=True)
    assert busy.is_open(8 * MS)
    busy.end(busy.runs[2], 9 * MS, started=True)
    assert busy.is_open(9 * MS)


def test_where_several_run_at_once_the_first_end_counts():
    wide = TargetState(replace(target(slots=3), width=2))
    for number in (1, 2):
        wide.begin(replace(run(number, 0), spread_ns=100 * MS))
    assert wide.is_open(5 * MS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 3},
        {"cost_per_s": -1.0},
        {"cost_per_kwh": -1.0},
        {"transfer_ns": (0, -1.0)},
    ],
)
def test_a_target_that_can_not_be_is_refused(wrong):
    with pytest.raises(ValueError, match="'t'"):
        TargetSpec("t", (FIVE,), **wrong)


def test_a_batch_costs_its_requests_its_time_and_its_energy():
    spec = TargetSpec("t", cost_per_request=0.5, cost_per_s=2.0)
    assert spec.cost(4, 250 * MS, 9e9) == 2.5
    assert replace(spec, cost_per_kwh=0.36).cost(4, 250 * MS, 1e12) == pytest.approx(2.6)


def test_energy_is_no_bill():
    assert not TargetSpec("t", cost_per_kwh=1.0).is_paid
    assert TargetSpec("t", cost_per_request=1.0).is_paid
    assert TargetSpec("t", cost_per_s=1.0).is_paid


def test_a_batch_takes_the_energy_of_the_next_size_that_was_metered():
    metered = replace(FIVE, energy_uj={1: 10, 4: 16})
    assert [metered.energy(n) for n in (1, 2, 4, 8)] == [10, 16, 16, 32]
    assert FIVE.energy(3) == 0
    with pytest.raises(ValueError, match="-1 uJ"):
        replace(FIVE, energy_uj={1: -1})


def test_a_closed_target_takes_nothing_until_it_opens_again():
    closed = state(FIVE)
    closed.change(closed.spec, 9 * MS)
    assert closed.has_slot()
    assert not closed.is_open(8 * MS)
    assert closed.is_open(9 * MS)
    assert (closed.free_ns(0), closed.free_ns(11 * MS)) == (9 * MS, 11 * MS)
    assert (closed.opens_ns(), closed.back_ns(0)) == (9 * MS, 9 * MS)


def test_a_target_keeps_what_it_holds_when_its_slots_are_lowered():
    full = state(FIVE, slots=3)
    for number in (1, 2, 3):
        full.begin(run(number, 0))
    full.change(replace(full.spec, slots=1), 0)
    assert list(full.runs) == [1, 2, 3]
    assert not full.has_slot()
    assert full.grandfathered == 3
