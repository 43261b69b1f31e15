from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.core.belief import FIRST_NS, MOST_NS
from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.daemon.cloud.latencies import Latencies, LatencyFile
from scheduler.daemon.cloud.tensors import CloudModel
from scheduler.daemon.ways.shrinking import Shrinking
from tests.clock import Clock
from tests.daemon.cloud.boxes import CARD

MS = 1_000_000
MODEL = CloudModel(CARD, "double", "1", "", True, 8, Shrinking(CARD, frozenset()))


def measured(*sizes: int) -> Latencies:
    latencies = Latencies(MODEL, {})
    for size in sizes:
        for _ in range(3):
            latencies.observe(size, (10 + size) * MS)
    return latencies


def test_batches_grow_as_they_are_measured():
    assert sorted(measured(1).offer(0).latency_ns) == [1, 2]
    assert sorted(measured(1, 2).offer(0).latency_ns) == [1, 2, 4]
    assert sorted(measured(1, 2, 4, 8).offer(0).latency_ns) == [1, 2, 4, 8]


def test_a_batch_between_two_sizes_tells_of_the_larger():
    latencies = measured(1, 2, 3)
    assert {size: samples[1] for size, samples in latencies.offer(0).latency_ns.items()} == {
        1: 11 * MS, 2: 12 * MS, 4: 13 * MS, 8: int(1.9 * 13 * MS),
    }  # fmt: skip


def test_a_batch_that_was_sent_when_larger_ones_were_allowed_still_tells_something():
    latencies = measured(1, 2, 4, 8, 9)
    assert latencies.measured()[8] == [18 * MS] * 3 + [19 * MS] * 3
    assert latencies.longest_ns(9) == 19 * MS


@pytest.mark.parametrize(("refused", "largest"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4)])
def test_only_sizes_below_a_refused_one_are_offered(refused, largest):
    latencies = measured(1, 2, 4, 8)
    latencies.refuse(refused)
    assert max(latencies.offer(0).latency_ns) == largest
    latencies.allow_all()
    assert max(latencies.offer(0).latency_ns) >= 8


def test_the_next_size_is_taken_to_cost_nearly_twice_as_much():
    ladder = measured(1).offer(0).latency_ns
    assert 1.8 * ladder[1][0] < ladder[2][0] < 2 * ladder[1][0]


def test_an_offer_holds_the_way_back():
    assert measured(1).offer(5 * MS).latency_ns[1] == (16 * MS,) * 3


def test_an_offer_is_made_anew_when_there_is_a_reason():
    latencies = measured(1)
    latencies.offer(0)
    assert not latencies.moved()
    for _ in range(3):
        latencies.observe(2, 22 * MS)
    assert latencies.moved(), "a larger size can be tried"
    latencies.offer(0)
    assert not latencies.moved()
    for _ in range(40):
        latencies.observe(1, 30 * MS)
    assert latencies.moved(), "it takes longer"


def test_how_long_a_batch_may_take_is_told_of_sizes_that_were_not_measured_too():
    assert measured(1).longest_ns(4) == 44 * MS
    assert measured(1, 4).longest_ns(6) == 21 * MS
    assert measured(1, 4, 5).longest_ns(6) == 15 * MS, "as five took"
    assert Latencies(MODEL, {}).longest_ns(1) == 0


def in_a_bad_moment(latencies: Latencies, size: int) -> None:
    for _ in range(3):
        latencies.observe(size, 1_000 * MS)
    latencies.offer(0)


def is_tempting(offer: Offer, size: int) -> bool:
    """Whether so many at once take less time than two batches of half of them."""
    curve = LatencyCurve(offer)
    return curve.predict(size, 0.95) < 2 * curve.predict(size // 2, 0.95)


def test_a_size_that_was_measured_in_a_bad_moment_is_tried_again_after_a_while():
    clock = Clock()
    latencies = Latencies(MODEL, {1: [10 * MS] * 3, 2: [12 * MS] * 3}, clock)
    in_a_bad_moment(latencies, 4)
    assert not is_tempting(latencies.offer(0), 4)
    clock.now_ns += FIRST_NS - 1
    assert not latencies.moved()
    clock.now_ns += 1
    assert latencies.moved(), "there is something new to offer"
    assert is_tempting(latencies.offer(0), 4)
    assert not latencies.moved()
    for _ in range(3):
        latencies.observe(4, 15 * MS)
    assert latencies.offer(0).latency_ns[4] == (15 * MS,) * 3, "the bad moment does not count"


def test_an_item_that_was_slow_once_among_few_gives_way_to_what_is_tried_again():
    latencies = measured()
    latencies.start_over([40 * MS, 40 * MS, 280 * MS])
    latencies.confirm(39 * MS)
    assert sorted(latencies.measured()[1]) == [39 * MS, 40 * MS, 40 * MS]
    latencies.confirm(38 * MS)
    assert len(latencies.measured()[1]) == 4


def test_a_size_that_is_slow_indeed_is_tried_ever_more_seldom():
    clock = Clock()
    latencies = Latencies(MODEL, {1: [10 * MS] * 3}, clock)
    waits_ns = []
    for _ in range(9):
        in_a_bad_moment(latencies, 2)
        tried_ns = clock.now_ns
        while not is_tempting(latencies.offer(0), 2):
            clock.now_ns += FIRST_NS
        waits_ns.append(clock.now_ns - tried_ns)
    assert waits_ns == [min(MOST_NS, FIRST_NS << n) for n in range(9)]


def test_what_is_no_slower_than_expected_is_never_forgotten_and_a_slow_size_hides_none_above_it():
    clock = Clock()
    known = {1: [10 * MS] * 3, 2: [1_000 * MS] * 3, 4: [13 * MS] * 3, 8: [16 * MS] * 3}
    latencies = Latencies(MODEL, known, clock)
    clock.now_ns += 1_000 * MOST_NS
    ladder = latencies.offer(0).latency_ns
    assert is_tempting(latencies.offer(0), 2)
    assert (ladder[4], ladder[8]) == ((13 * MS,) * 3, (16 * MS,) * 3)


def test_what_was_learned_of_another_server_is_not_used(tmp_path: Path):
    path = tmp_path / "far.json"
    LatencyFile(path, "grpc://a:1").write([measured(1)])
    assert LatencyFile(path, "grpc://a:1").read() == {"double": {1: [11 * MS] * 3}}
    assert LatencyFile(path, "grpc://b:1").read() == {}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"url": "u"}', '{"url": "u", "models": {"m": {"x": 1}}}']
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str):
    path = tmp_path / "far.json"
    path.write_text(text)
    assert LatencyFile(path, "u").read() == {}
