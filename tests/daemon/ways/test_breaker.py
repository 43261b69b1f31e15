from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler.daemon.ways.breaker import Backoff, Breaker, BreakerState


def breaker(trip_after: int = 3) -> Breaker:
    return Breaker(trip_after, Backoff(100, 10_000, Random(1)))


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not():
    each = breaker()
    assert each.failed("a") is None
    assert each.failed("b") is None
    assert not each.succeeded()
    assert each.failed("c") is None
    assert each.failed("d") is None
    assert each.failed("e") is not None
    assert (each.state, each.trips, each.reason) == (BreakerState.OPEN, 1, "e")


def test_one_failure_opens_a_half_open_one_and_one_success_closes_it():
    each = breaker(1)
    each.failed("gone")
    each.half_open()
    assert each.failed("still gone") is not None
    each.half_open()
    assert each.succeeded()
    assert each.state is BreakerState.CLOSED


def test_what_was_on_its_way_when_it_opened_changes_nothing():
    each = breaker(1)
    each.failed("gone")
    assert not each.succeeded()
    assert each.failed("another of the same batch") is None
    assert (each.state, each.trips) == (BreakerState.OPEN, 1)


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_waits_lie_below_a_ceiling_that_doubles_up_to_the_highest(seed: int, failures: int):
    each = Backoff(1_000, 64_000, Random(seed))
    for failure in range(failures):
        ceiling = min(64_000, 1_000 << failure)
        assert ceiling // 10 <= each.next_ns() <= ceiling
    each.reset()
    assert each.next_ns() <= 1_000


def test_the_same_seed_gives_the_same_waits():
    first, second = (Backoff(1_000, 64_000, Random(7)) for _ in range(2))
    assert [first.next_ns() for _ in range(9)] == [second.next_ns() for _ in range(9)]
