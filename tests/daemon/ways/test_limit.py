from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.daemon.ways.limit import LEAST_WINDOW_NS, Least, VegasLimit


def settled(servers: int, most: int = 64) -> int:
    """Where the limit goes at a target that runs so many batches at once, 10 ms each."""
    limit = VegasLimit(4, most)
    for _ in range(500):
        latency_ns = 10_000_000 * max(1.0, limit.value / servers)
        limit.observe(int(latency_ns), 10_000_000, limit.value)
    return limit.value


def test_it_finds_how_many_a_target_runs_at_once_and_leaves_few_waiting():
    assert 8 <= settled(8) <= 8 + 12
    assert 30 <= settled(30) <= 30 + 14


def test_it_never_goes_beyond_what_the_owner_allows():
    assert settled(100, most=10) == 10


def test_a_target_that_is_not_put_to_the_test_does_not_raise_it():
    limit = VegasLimit(10, 100)
    for _ in range(50):
        limit.observe(10, 10, in_flight=2)
    assert limit.value == 10


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 99))))
def test_it_stays_between_one_and_the_most(samples: list[tuple[int, int, int]]):
    limit = VegasLimit(8, 32)
    for latency_ns, least_ns, in_flight in samples:
        limit.observe(latency_ns, least_ns, in_flight)
        assert 1 <= limit.value <= 32


def test_refusals_bring_it_down_to_one():
    limit = VegasLimit(32, 32)
    for _ in range(40):
        limit.dropped()
    assert limit.value == 1


def test_the_least_latency_is_forgotten_when_it_is_not_seen_again():
    least = Least()
    assert least.observe("a", 10, 1) == 10
    assert least.observe("a", 30, 2) == 10
    assert least.observe("b", 40, 3) == 40
    least.observe("a", 20, 2 * LEAST_WINDOW_NS)
    assert least.observe("a", 30, 4 * LEAST_WINDOW_NS) == 20
    assert least.observe("a", 25, 6 * LEAST_WINDOW_NS) == 25
