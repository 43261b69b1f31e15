from __future__ import annotations

import pytest

from scheduler.daemon.ways.meter import BULK_NS, WayMeter
from scheduler.daemon.ways.samples import ROUND_TRIPS
from tests.clock import Clock

MS = 1_000_000


def test_small_messages_tell_the_round_trip_and_its_jitter():
    meter = WayMeter()
    for index in range(20):
        meter.round_trip((10 + 20 * (index == 19)) * MS)
    assert meter.round_trip_ns == 10 * MS
    assert meter.jitter_ns == 20 * MS
    assert meter.slow_round_trip_ns == 30 * MS
    assert meter.loss == 0


def test_large_messages_tell_the_bandwidth_where_the_far_end_says_how_long_it_took():
    meter = WayMeter()
    meter.carried(100_000, 0, 90 * MS)
    assert meter.byte_ns == 0, "without a round trip the bytes' part is not known"
    meter.round_trip(10 * MS)
    meter.carried(90_000, 10_000, None)
    assert meter.byte_ns == 0
    meter.carried(90_000, 10_000, 90 * MS)
    assert meter.transfer_ns() == (5 * MS, 800.0)
    assert meter.back_ns == 5 * MS
    assert meter.both_ways_ns(1_000) == 10 * MS + 800_000
    assert meter.describe()["bandwidth_mbps"] == 10.0
    assert (meter.sent_bytes, meter.received_bytes) == (280_000, 20_000)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_shares_the_way_tells_its_bandwidth_together(at_once: bool):
    """Five messages of 80 ms each, either one after the other or all at once, which take as long
    as all of them; then one alone, and again."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    for begin_ms in (1_000, 2_000, 3_000, 4_000):
        for number in range(1, 6):
            took_ms = 400 if at_once else 80 * number
            clock.now_ns = (begin_ms + took_ms + 10) * MS
            meter.carried(100_000, 0, (took_ms + 10) * MS, begin_ms * MS)
        assert meter.byte_ns == pytest.approx(800.0, rel=0.3 if at_once else 0.01)


@pytest.mark.parametrize("pause_s", [0, 10])
def test_answers_that_travel_while_other_messages_are_sent_do_not_make_the_way_look_faster(
    pause_s: int,
):
    """Messages and answers of 80 ms each, of which the way carries one in each direction."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    for number in range(100):
        begin_ms = 1_000 + pause_s * 1_000 * (number // 5)
        back_ms = begin_ms + 80 * (2 + number % 5 if pause_s else 2 + number)
        sent_ms = max(begin_ms, back_ms - 6 * 80)
        clock.now_ns = (back_ms + 10) * MS
        meter.carried(100_000, 100_000, (back_ms - sent_ms + 10) * MS, sent_ms * MS)
    assert meter.byte_ns == pytest.approx(800.0, rel=0.01)


@pytest.mark.parametrize("each_ms", [100, 120, 190])
def test_a_way_that_is_idle_now_and_then_in_each_direction_is_as_fast_as_it_is(each_ms: int):
    """Messages and answers of 80 ms each, so often that there is always one of either."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    for number in range(100):
        sent_ms = 1_000 + each_ms * number
        clock.now_ns = (sent_ms + 170) * MS
        meter.carried(100_000, 100_000, 170 * MS, sent_ms * MS)
        assert meter.byte_ns == pytest.approx(800.0, rel=0.01)


@pytest.mark.parametrize("answered", range(1, 30))
def test_messages_without_answers_do_not_make_the_way_look_faster(answered: int):
    """Of 30 messages of 80 ms each that are sent at once, the first few are answered in as long."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    for number in range(30):
        received = 100_000 if number < answered else 0
        ended_ms = 1_000 + 80 * (number + 1 + (number < answered))
        clock.now_ns = (max(ended_ms, 1_000 + 80 * (answered + 1)) + 10) * MS
        meter.carried(100_000, received, clock.now_ns - 1_000 * MS, 1_000 * MS)
        assert meter.byte_ns >= 799.0


def test_a_message_whose_end_is_told_behind_an_answer_does_not_make_the_way_look_faster():
    """Of four messages, of 1,920 ms each, all but the last are answered in as long."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(0)
    for first_ms in range(1_000, 100_000, 10_000):
        for number, ended_ms in enumerate((3_840, 5_760, 7_680, 7_690)):
            sent_ms = first_ms + 1_000 * number
            clock.now_ns = (first_ms + ended_ms) * MS
            received = 1_200_000 if number < 3 else 0
            meter.carried(1_200_000, received, clock.now_ns - sent_ms * MS, sent_ms * MS)
            assert meter.byte_ns >= 1_599.0


def test_a_way_that_carries_messages_without_answers_all_the_time_tells_its_bandwidth_of_now():
    """Of 1,920 ms each, one every 600 ms."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(0)
    for number in range(10):
        sent_ms, ended_ms = 1_000 + 600 * number, 1_000 + 1_920 * (number + 1)
        clock.now_ns = ended_ms * MS
        meter.carried(1_200_000, 0, (ended_ms - sent_ms) * MS, sent_ms * MS)
        assert meter.byte_ns == pytest.approx(1_600.0, rel=0.01)


def test_small_messages_that_wait_behind_large_ones_do_not_make_the_way_look_faster():
    """Messages and answers of 80 ms each, and meanwhile small ones."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    for number in range(100):
        sent_ms = 1_000 + 300 * number
        clock.now_ns = sent_ms * MS
        for _ in range(2):
            meter.carried(100, 100, 10 * MS, (sent_ms - 10) * MS)
        for waited_ms in (80, 60, 40):
            clock.now_ns += 30 * MS
            meter.carried(100, 100, (10 + waited_ms) * MS, clock.now_ns - (10 + waited_ms) * MS)
        clock.now_ns = (sent_ms + 170) * MS
        meter.carried(100_000, 100_000, 170 * MS, sent_ms * MS)
        assert meter.byte_ns == pytest.approx(800.0, rel=0.01)


def test_round_trips_that_vary_do_not_make_the_way_look_slower():
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    for small_ms, large_ms in [(10, 30), (50, 10), (20, 50), (40, 20), (30, 40)] * 20:
        clock.now_ns += 200 * MS
        meter.round_trip(small_ms * MS)
        meter.carried(100_000, 0, (large_ms + 8) * MS)
    assert meter.byte_ns == pytest.approx(80.0, rel=0.01)


def test_a_way_that_has_become_longer_is_not_long_taken_for_a_slow_one():
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    for number in range(200):
        round_trip_ms = 10 if number < 100 else 60
        clock.now_ns += 200 * MS
        meter.round_trip(round_trip_ms * MS)
        meter.carried(100_000, 0, (round_trip_ms + 80) * MS)
    assert meter.byte_ns == pytest.approx(800.0, rel=0.01)


def test_a_way_that_is_never_idle_tells_its_bandwidth_of_now():
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    left_ms = 0
    for number in range(400):
        carry_ms = 80 if number < 100 else 20
        sent_ms, left_ms = max(0, left_ms - 5), left_ms + carry_ms
        clock.now_ns = (left_ms + 10) * MS
        meter.carried(100_000, 0, (left_ms - sent_ms + 10) * MS, sent_ms * MS)
        if number == 99:
            assert meter.byte_ns == pytest.approx(800.0, rel=0.01)
    assert meter.byte_ns == pytest.approx(200.0, rel=0.01)


def test_what_was_answered_late_says_nothing_of_the_way_since():
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    for sent_ms in (100, 200, 300):
        clock.now_ns = (sent_ms + 90) * MS
        meter.carried(100_000, 0, 90 * MS, sent_ms * MS)
    clock.now_ns = 500 * MS
    meter.carried(100_000, 0, 90 * MS, 0)
    assert meter.byte_ns == 800.0


def test_on_a_slow_link_small_messages_tell_the_bandwidth_as_well():
    """Else a link that got faster would not be noticed while everything is made smaller for it."""
    meter = WayMeter(byte_ns=8_000.0)
    meter.round_trip(10 * MS)
    assert meter.is_bulk(4_000)
    assert not meter.is_bulk(2_000)
    assert not meter.carried(10_000, 0, 18 * MS)
    assert meter.byte_ns == 800.0
    assert meter.round_trip_ns == 10 * MS


def test_what_others_have_overtaken_does_not_make_the_way_look_faster():
    """On another connection: small messages of 3 ms beside a large one, which takes 480."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(MS)
    for number in range(20):
        clock.now_ns += 1_000 * MS
        sent_ns = clock.now_ns
        for _ in range(12 if number else 0):
            clock.now_ns += 40 * MS
            assert not meter.carried(7_000, 0, 4 * MS, clock.now_ns - 4 * MS)
        clock.now_ns = sent_ns + 481 * MS
        meter.carried(600_000, 600_000, 481 * MS, sent_ns)
        assert meter.byte_ns == pytest.approx(400.0, rel=0.05)


def test_round_trips_that_waited_for_a_large_message_do_not_make_the_way_look_faster():
    """Small messages take 200 ms beside a large one, which takes 480, and 1 ms otherwise."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    for _ in range(20):
        for _ in range(5):
            clock.now_ns += 100 * MS
            meter.round_trip(MS)
        sent_ns = clock.now_ns
        for _ in range(12):
            clock.now_ns += 40 * MS
            meter.round_trip(200 * MS)
        clock.now_ns += MS
        meter.carried(600_000, 600_000, 481 * MS, sent_ns)
        assert meter.byte_ns == pytest.approx(400.0, rel=0.01)


def test_small_messages_that_a_shaped_way_lets_through_at_once_outvote_no_large_ones():
    """Each of the small ones takes a quarter of what its bytes take in a large one."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(MS)
    for number in range(200):
        clock.now_ns += 50 * MS
        size, byte_ns = (600_000, 1_600) if number % 50 == 0 else (8_000, 400)
        meter.carried(size, 0, MS + size * byte_ns, clock.now_ns)
        clock.now_ns += size * byte_ns
        assert meter.byte_ns == pytest.approx(1_600.0, rel=0.01)
        assert meter.round_trip_ns == MS


@pytest.mark.parametrize("round_trip_ms", [1, 20])
@pytest.mark.parametrize("byte_ns", [0.0, 8.0, 800.0, 8_000.0])
def test_what_is_sent_to_learn_the_bandwidth_tells_it_and_holds_up_other_messages_for_little(
    byte_ns: float, round_trip_ms: int
):
    meter = WayMeter(byte_ns=byte_ns)
    meter.round_trip(round_trip_ms * MS)
    size = meter.trial_bytes(100_000_000)
    assert meter.is_bulk(size)
    assert size * byte_ns <= max(50, 3 * round_trip_ms) * MS
    assert meter.trial_bytes(1_000) == 1_000


def test_the_bytes_of_a_small_message_are_taken_off_where_the_bandwidth_is_known():
    meter = WayMeter(byte_ns=800.0)
    meter.carried(5_000, 0, 14 * MS)
    assert meter.round_trip_ns == 10 * MS


def test_messages_of_middling_size_tell_the_bandwidth_while_there_are_no_larger_ones():
    """30 KB over 5 Mbit/s take 48 ms: less than two round trips, and no part of one."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)

    def carried(size: int, took_ms: int) -> None:
        clock.now_ns += 1_000 * MS
        assert not meter.carried(size, 0, took_ms * MS, clock.now_ns - took_ms * MS)
        assert meter.round_trip_ns == 30 * MS

    meter.round_trip(30 * MS)
    for byte_ns in (0, 0, 1_600):
        carried(30_000, 78)
        assert meter.byte_ns == byte_ns, "two may have waited for something else"
    carried(100_000, 110)
    assert meter.byte_ns == 800
    carried(30_000, 78)
    assert meter.byte_ns == 800
    clock.now_ns += BULK_NS
    carried(30_000, 78)
    assert meter.byte_ns == 1_600


def test_what_waited_for_something_else_is_not_taken_for_bandwidth():
    meter = WayMeter()
    meter.round_trip(10 * MS)
    for index in range(ROUND_TRIPS):
        meter.carried(100_000, 0, (90 if index % 2 else 290) * MS)
    assert meter.byte_ns == 800.0


def test_a_way_that_was_slow_once_is_as_fast_as_the_first_message_after_it_has_been_still():
    now_ns = 0
    meter = WayMeter(clock_ns=lambda: now_ns)
    meter.round_trip(10 * MS)
    for _ in range(ROUND_TRIPS):
        meter.carried(100_000, 0, 9_010 * MS)
    now_ns = BULK_NS // 2
    meter.carried(100_000, 0, 90 * MS)
    assert meter.byte_ns == 90_000.0, "one of many may have been lucky"
    now_ns += BULK_NS + 1
    meter.carried(100_000, 0, 90 * MS)
    assert meter.byte_ns == 800.0


def test_a_way_that_has_become_slower_is_believed_after_three_messages():
    """And one that is faster again after two."""
    clock = Clock()
    meter = WayMeter(clock_ns=clock)
    meter.round_trip(10 * MS)
    known = []
    for took_ms in (80, 80, 80, 80, 320, 80, 320, 320, 80, 320, 320, 320, 80, 80):
        clock.now_ns += 500 * MS
        meter.carried(100_000, 0, (took_ms + 10) * MS)
        known.append(round(meter.byte_ns * 100_000 / MS))
    assert known == [80] * 11 + [320, 320, 80]


def test_live_traffic_of_small_messages_needs_no_probes():
    meter = WayMeter()
    meter.carried(600, 400, 7 * MS)
    assert meter.round_trip_ns == 7 * MS


def test_loss_is_the_share_that_did_not_come_back_lately():
    meter = WayMeter()
    for index in range(2 * ROUND_TRIPS):
        meter.lost() if index % 4 == 0 else meter.round_trip(MS)
    assert meter.loss == pytest.approx(0.25)


def test_only_what_matters_makes_it_another_way():
    meter = WayMeter()
    meter.round_trip(20 * MS)
    assert meter.moved()
    assert not meter.moved()
    for _ in range(ROUND_TRIPS):
        meter.round_trip(22 * MS)
    assert not meter.moved(), "a tenth more is noise"
    for _ in range(ROUND_TRIPS):
        meter.round_trip(30 * MS)
    assert meter.moved()


def test_a_slow_second_is_over_when_it_is_over():
    now = [0]
    meter = WayMeter(clock_ns=lambda: now[0])
    for _ in range(ROUND_TRIPS):
        now[0] += 20 * MS
        meter.round_trip(200 * MS)
    assert meter.round_trip_ns == 200 * MS
    for _ in range(2):
        now[0] += 1_100 * MS
        meter.round_trip(15 * MS)
    assert meter.round_trip_ns == 15 * MS
    assert meter.slow_round_trip_ns == 200 * MS, "it may happen again"
    now[0] += 4_000 * MS
    meter.round_trip(15 * MS)
    assert meter.slow_round_trip_ns == 200 * MS
    now[0] += 4_000 * MS
    meter.round_trip(15 * MS)
    assert meter.slow_round_trip_ns == 15 * MS
