"""What is remembered of requests, so that no task is in their way."""

from __future__ import annotations

import pytest

from scheduler.core.latency import LatencyCurve
from scheduler.durable.room import LATELY_NS, PART, Room
from tests.core.world import offer

MS = 1_000_000


@pytest.mark.parametrize("late_ns", [LATELY_NS // 2, 3 * LATELY_NS // 2, 3 * LATELY_NS])
def test_the_shortest_budget_counts_of_those_that_came_lately(late_ns: int) -> None:
    room = Room()
    room.note(50 * MS, 0, lambda: True)
    assert room.longest_ns(0) == 50 * MS // PART
    room.note(100 * MS, late_ns, lambda: True)
    shortest_ms = 50 if late_ns < 2 * LATELY_NS else 100
    assert room.longest_ns(late_ns) == shortest_ms * MS // PART


def test_a_budget_that_nothing_could_meet_does_not_count() -> None:
    room = Room()
    room.note(1 * MS, 0, lambda: False)
    assert room.longest_ns(0) is None
    room.note(50 * MS, 0, lambda: True)
    room.note(1 * MS, 0, lambda: False)
    assert room.longest_ns(0) == 50 * MS // PART


def test_what_a_batch_of_tasks_would_take_leaves_nothing_to_learn_from() -> None:
    """It is asked when no journal says so, and a replay must learn the same."""
    curve = LatencyCurve(offer(base_ms=4, item_ms=1))
    room = Room()
    room.note(64 * MS, 0, lambda: True)
    assert room.batch(curve, 100, 0) == 8
    room.given("cpu:0", curve, [1, 2], 0)
    assert curve.calibration() == ()


@pytest.mark.parametrize(("budget_ms", "is_closed"), [(30_000, False), (11_000, True)])
def test_a_slow_task_that_no_recent_request_would_mind_closes_nothing(
    budget_ms: int, is_closed: bool
) -> None:
    """Beside requests with 30 s, tasks of 3 s had one part in fifty of an idle device's time."""
    curve = LatencyCurve(offer(base_ms=2_990, item_ms=10))
    room = Room()
    room.note(budget_ms * MS, 0, lambda: True)
    assert room.batch(curve, 100, 0) == 1
    room.given("gpu:0", curve, [1], 0)
    assert (room.closed_until_ns("gpu:0") > 0) == is_closed
    room.took(1, 3_000 * MS, 3_000 * MS)
    assert (room.closed_until_ns("gpu:0") > 0) == is_closed
