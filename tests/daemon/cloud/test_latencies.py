from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.daemon.cloud.latencies import Latencies, LatencyFile
from scheduler.daemon.cloud.tensors import CloudModel
from scheduler.daemon.ways.shrinking import Shrinking
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
    assert Latencies(MODEL, {}).longest_ns(1) == 0


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
