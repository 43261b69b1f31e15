"""What items of other sizes than the measured one take is learned for each size by itself."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.belief import FIRST_NS
from scheduler.core.latency import STALE_NS
from scheduler.core.offers import Offer
from scheduler.core.requests import Request, RequestClass
from scheduler.core.sizes import FINDING, STEPS, least_elements, step_of
from scheduler.core.targets import Run, TargetState
from tests.core.world import MS, offer, target

SECOND_NS = 1_000_000_000
LATE_NS = FIRST_NS + SECOND_NS


def speech(length: int) -> RequestClass:
    return RequestClass("m", shapes=((length, 80), (1,)))


def measured_at(length: int, *samples_ms: float) -> Offer:
    """Of a model that takes [length, 80] and [1]; batches of two take as long as of one."""
    samples = tuple(int(ms * MS) for ms in samples_ms or (2.0,))
    return Offer("m", "v", "r", {1: samples, 2: samples}, item_shapes=((length, 80), ()))


class Device:
    """A target that runs one item after the other."""

    def __init__(self, measured: Offer) -> None:
        self.offer = measured
        self.state = TargetState(target("t", measured))
        self.state.add_offers([measured])
        self.now_ns = 0

    def run(self, length: int, *times_ms: float) -> None:
        """Says what items of a length took, one after the other."""
        for took_ms in times_ms:
            request = Request(1, speech(length), SECOND_NS)
            run = Run(1, "t", self.offer, (1,), {1}, self.now_ns, 0, requests=(request,))
            self.now_ns += int(took_ms * MS)
            self.state.observe(run, self.now_ns)
            self.state.last_done_ns = self.now_ns

    def wait(self, ns: int) -> None:
        self.now_ns += ns
        self.state.refresh(self.now_ns)

    def ms(self, length: int, quantile: float = 0.5) -> float:
        """What is predicted of an item of a length."""
        return self.state.curve(self.offer, speech(length)).predict(1, quantile) / MS


# -- steps of size


@given(st.integers(1, 1 << 40))
def test_a_step_holds_sizes_that_differ_by_less_than_a_quarter(elements):
    step = step_of(elements)
    least, beyond = least_elements(step), least_elements(step + 1)
    assert least <= elements < beyond
    assert beyond <= max(least * (1 + 1 / STEPS), least + 1)
    assert (step_of(least), step_of(beyond)) == (step, step + 1)


# -- what was measured of one size


def test_a_request_without_shapes_is_of_the_measured_size():
    """A workload has models, and seldom what is given to them."""
    device = Device(measured_at(100))
    device.run(1_000, *[20.0] * FINDING)
    curve = device.state.curve(device.offer, RequestClass("m"))
    assert curve is device.state.curve(device.offer, speech(100))


def test_an_offer_without_free_dimensions_has_one_curve_for_all():
    device = TargetState(target("t", fixed := offer()))
    device.add_offers([fixed])
    assert device.curve(fixed, speech(7)) is device.curve(fixed, speech(7000))
    assert device.curve(fixed, speech(7)) is device.curve(fixed)


def test_the_size_that_was_measured_has_the_measured_curve():
    device = Device(measured_at(100))
    state, measured = device.state, device.offer
    assert state.curve(measured, speech(100)) is state.curve(measured)
    assert state.curve(measured, speech(200)) is not state.curve(measured)


def test_only_inputs_with_free_dimensions_count():
    wide = Offer("m", "v", "r", {1: (MS,)}, item_shapes=((3,), ()))
    assert wide.elements(((5,), (1000, 1000))) == 5
    state = TargetState(target("t", wide))
    state.add_offers([wide])
    small, large = (RequestClass("m", shapes=((3,), (n, n))) for n in (1, 1000))
    assert state.curve(wide, small) is state.curve(wide, large)


# -- what is guessed of others


def test_before_anything_ran_larger_items_take_what_was_measured_and_smaller_ones_their_share():
    device = Device(measured_at(100))
    assert device.ms(100_000) == 2
    assert device.ms(25) == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_between_known_sizes_the_guess_is_never_above_a_line_or_a_power_of_size(power):
    device = Device(measured_at(1))
    device.run(10_000, *[2.0 * 10_000**power] * 3)
    guesses = [device.ms(length) for length in (1, 10, 100, 1000, 10_000)]
    assert all(small <= large for small, large in pairwise(guesses))
    assert guesses[3] <= 2.0 * 1000**power * 1.001


def test_a_guess_gets_better_as_others_run():
    device = Device(measured_at(1))
    assert device.ms(1000) == 2
    device.run(500, *[1000.0] * 3)
    assert device.ms(1000) == pytest.approx(1000, rel=0.01)
    device.run(2000, *[4000.0] * 3)
    assert device.ms(1000) == pytest.approx(2000, rel=0.2)


# -- what is learned


def test_large_items_do_not_make_small_ones_look_slow():
    device = Device(measured_at(10))
    device.run(10_000, *[900.0] * 50)
    device.run(100, *[5.0] * 50)
    assert device.ms(10_000) == pytest.approx(900, rel=0.01)
    assert device.ms(100) == pytest.approx(5, rel=0.01)
    assert device.ms(10) == 2


def test_the_first_run_of_a_size_is_not_believed_and_the_second_is():
    """Runtimes prepare themselves for a shape when they first meet it."""
    device = Device(measured_at(10))
    device.run(1000, 600.0)
    assert device.ms(1000) == 2
    device.run(1000, 100.0)
    assert device.ms(1000) == pytest.approx(100, rel=0.01)


def test_larger_items_are_disturbed_as_much_as_the_measured_ones_not_more():
    device = Device(measured_at(10, *[2.0] * 15, 6.0))
    device.run(1000, *[200.0] * FINDING)
    assert device.ms(1000, 0.99) == pytest.approx(204, rel=0.01)


def test_what_a_size_takes_is_learned_further_like_any_other():
    device = Device(measured_at(10))
    device.run(1000, *[200.0] * 50)
    assert device.ms(1000) == pytest.approx(200, rel=0.01)
    device.run(1000, *[300.0] * 50)
    assert device.ms(1000) == pytest.approx(300, rel=0.01)
    assert [each.batches for each in device.state.calibration()] == [50]


# -- what is forgotten


def test_after_a_while_a_size_is_taken_to_need_the_least_that_it_did():
    device = Device(measured_at(10))
    device.run(1000, *[200.0] * 20, *[700.0] * 40)
    assert device.ms(1000) == pytest.approx(700, rel=0.01)
    device.wait(STALE_NS + 1)
    assert device.ms(1000) == pytest.approx(200, rel=0.01)
    device.run(1000, 210.0)
    assert device.ms(1000) > 200


def test_what_nothing_confirms_is_doubted_each_time_after_twice_as_long():
    device = Device(measured_at(10))
    for believed_ns in (FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS):
        device.run(1000, *[200.0] * 3)
        device.wait(STALE_NS + 1)
        device.wait(believed_ns - STALE_NS - 2)
        assert device.ms(1000) == pytest.approx(200, rel=0.01)
        device.wait(2)
        assert device.ms(1000) == 2
    device.run(1000, *[100.0] * 3)  # it was wrong, so it is believed no longer than at first
    device.wait(STALE_NS + 1)
    device.wait(LATE_NS)
    assert device.ms(1000) == 2


def test_what_takes_seconds_is_doubted_as_much_later_as_it_becomes_stale():
    device = Device(measured_at(10, 2_000.0))
    device.run(1000, *[5_000.0] * 3)
    for ns in (10 * 2 * SECOND_NS, STALE_NS, FIRST_NS - 2 * STALE_NS - 1):
        device.wait(ns)
        assert device.ms(1000) == 5_000
    device.wait(1)
    assert device.ms(1000) == 2_000


def test_what_was_guessed_by_a_size_goes_when_that_is_doubted():
    device = Device(measured_at(10))
    device.run(1000, *[2_000.0] * 3)
    assert device.ms(4000) >= 2_000
    device.wait(STALE_NS + 1)
    device.wait(LATE_NS)
    assert device.ms(4000) == 2


def test_what_became_slow_is_believed_no_longer_than_at_first():
    device = Device(measured_at(10))
    for believed_ns in (FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS):
        device.run(1000, *[20.0] * 3)
        device.wait(STALE_NS + 1)
        device.wait(believed_ns - STALE_NS)
    device.run(1000, *[2_000.0] * 3)
    device.wait(STALE_NS + 1)
    device.wait(LATE_NS)
    assert device.ms(1000) == 2


def test_a_size_that_is_doubted_late_keeps_no_other_from_going_stale():
    """A slow moment would otherwise count until that size is doubted: for up to ten minutes."""
    device = Device(measured_at(100))
    device.run(1_000, *[20.0] * FINDING)
    device.wait(STALE_NS + SECOND_NS)
    device.run(100, *[40.0] * 20)
    assert device.ms(100) == 40.0
    device.wait(STALE_NS + SECOND_NS)
    assert device.ms(100) == 2.0


def test_a_doubted_size_is_guessed_by_the_others():
    device = Device(measured_at(10))
    device.run(900, *[90.0] * 3)
    device.run(1100, *[110.0] * 3)
    device.run(1000, *[600.0] * 3)
    device.wait(STALE_NS + 1)
    device.wait(LATE_NS)
    assert 50 < device.ms(1000) < 120


def test_in_which_order_sizes_were_asked_for_changes_nothing():
    """Durable tasks and reports ask for sizes when no journal says so."""
    times_ms = {900: 90.0, 1000: 600.0, 1100: 110.0}
    predicted = set()
    for lengths in permutations(times_ms):
        device = Device(measured_at(10))
        for length in lengths:
            device.ms(length)
        for length, took_ms in times_ms.items():
            device.run(length, *[took_ms] * 3)
        device.wait(STALE_NS + 1)
        device.wait(LATE_NS)
        predicted.add(tuple(device.ms(length) for length in times_ms))
    assert len(predicted) == 1


def test_a_new_measurement_forgets_what_was_learned_of_all_sizes():
    device = Device(measured_at(10))
    device.run(1000, *[200.0] * 3)
    again = measured_at(10, 3.0)
    device.state.add_offers([again])
    assert device.state.curve(again, speech(1000)).predict(1, 0.5) == 3 * MS
