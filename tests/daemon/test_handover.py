"""What a device needs between two batches, by what was left of how long they were away."""

from __future__ import annotations

from scheduler.daemon.handover import ENOUGH, LEAST_NS, SAMPLES, TELL_NS, Handover
from tests.clock import Clock

MS = 1_000_000


def batches(handover: Handover, clock: Clock, took_ns: int, count: int) -> list[int]:
    """Sends so many that run 5 ms, to an idle worker; what was said of them."""
    told = []
    for run_id in range(count):
        handover.sent(run_id)
        clock.now_ns += 5 * MS + took_ns
        if (usual_ns := handover.done(run_id, 5 * MS)) is not None:
            assert handover.usual_ns == usual_ns
            told.append(usual_ns)
    return told


def test_it_is_told_once_it_is_known_and_when_it_has_changed():
    clock = Clock()
    handover = Handover(clock)
    assert batches(handover, clock, 300_000, ENOUGH - 1) == []
    assert handover.usual_ns is None
    assert batches(handover, clock, 300_000, 100) == [300_000]
    assert batches(handover, clock, 400_000, SAMPLES) == []
    clock.now_ns += TELL_NS
    assert batches(handover, clock, 20 * MS, 3 * SAMPLES)[-1] == 20 * MS


def test_news_waits_until_the_last_is_some_time_ago():
    clock = Clock()
    handover = Handover(clock)
    assert batches(handover, clock, MS, ENOUGH) == [MS]
    assert batches(handover, clock, 3 * MS, SAMPLES) == []
    clock.now_ns += TELL_NS
    assert batches(handover, clock, 3 * MS, 1) == [3 * MS]


def test_one_that_was_sent_behind_another_says_nothing():
    clock = Clock()
    handover = Handover(clock)
    for run_id in range(0, 100, 2):
        handover.sent(run_id)
        clock.now_ns += 90 * MS
        assert handover.done(run_id + 1, 5 * MS) is None
    assert handover.usual_ns is None


def test_a_clock_that_is_coarse_makes_it_no_less_than_it_can_be():
    clock = Clock()
    handover = Handover(clock)
    assert batches(handover, clock, -MS, ENOUGH) == [LEAST_NS]
