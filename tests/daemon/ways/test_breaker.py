from __future__ import annotations

from random import Random

from scheduler.backoff import Backoff
from scheduler.daemon.ways.breaker import Breaker, BreakerState


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


def test_an_outage_counts_once_however_often_it_is_probed():
    each = breaker(1)
    each.failed("gone")
    for _ in range(5):
        assert each.trip("no answer to a probe") > 0
    assert (each.state, each.trips, each.reason) == (BreakerState.OPEN, 1, "no answer to a probe")


def test_what_was_on_its_way_when_it_opened_changes_nothing():
    each = breaker(1)
    each.failed("gone")
    assert not each.succeeded()
    assert each.failed("another of the same batch") is None
    assert (each.state, each.trips) == (BreakerState.OPEN, 1)
