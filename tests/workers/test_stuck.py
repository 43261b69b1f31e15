"""A batch that never ends is told from one that takes its time."""

from __future__ import annotations

import pytest

from tests.clock import Clock
from workers.stuck import TIMES, StuckWatch

KEY = "model", "fp32"
MS = 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_runs_for_longer_than_is_allowed_is_stuck_until_it_ends(clock: Clock) -> None:
    watch = StuckWatch(30, clock)
    with watch.running(KEY, 4, {1: (MS, 2 * MS), 4: (3 * MS,)}):
        clock.now_ns = 30_000 * MS
        assert watch.verdict() is None
        clock.now_ns += MS
        verdict = watch.verdict()
        assert verdict is not None
        assert "4 of model/fp32 has run for 30 s, though at most 8 ms were expected" in verdict
    assert watch.verdict() is None


def test_what_always_takes_long_has_more_time(clock: Clock) -> None:
    watch = StuckWatch(30, clock)
    with watch.running(KEY, 3, {1: (2_000 * MS,)}):
        clock.now_ns = 3 * 2_000 * MS * TIMES
        assert watch.verdict() is None
        clock.now_ns += 1
        verdict = watch.verdict()
        assert verdict is not None
        assert "though at most 6,000 ms were expected" in verdict


def test_a_batch_that_fails_has_ended(clock: Clock) -> None:
    watch = StuckWatch(30, clock)
    with pytest.raises(RuntimeError), watch.running(KEY, 1, {1: (MS,)}):
        raise RuntimeError
    clock.now_ns = 60_000 * MS
    assert watch.verdict() is None


def test_without_a_limit_nothing_is_stuck(clock: Clock) -> None:
    watch = StuckWatch(None, clock)
    with watch.running(KEY, 1, {1: (MS,)}):
        clock.now_ns = 1 << 60
        assert watch.verdict() is None
