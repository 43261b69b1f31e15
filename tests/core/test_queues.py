from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from tests.core.world import M

FATES = st.sampled_from(["stays", "leaves", "comes back"])
WAITING = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 20), FATES), min_size=1, max_size=30)


def filled(fields) -> tuple[ClassQueue, list[Request]]:
    """A queue after some pushes and removals, and what should be in it, in order."""
    queue = ClassQueue(M)
    requests = [
        Request(i, M, deadline, priority) for i, (priority, deadline, _) in enumerate(fields, 1)
    ]
    for request in requests:
        queue.push(request)
    fates = [(request, fate) for request, (_, _, fate) in zip(requests, fields, strict=True)]
    for request, fate in fates:
        if fate != "stays":
            queue.remove(request)
    for request, fate in fates:
        if fate == "comes back":
            queue.push(request)
            queue.sort_by_age()
    left = [request for request, fate in fates if fate != "leaves"]
    return queue, sorted(left, key=lambda r: (r.priority, r.deadline_ns, r.id))


@given(fields=WAITING, at=st.integers(0, 21), count=st.integers(1, 8))
def test_a_queue_answers_like_a_sorted_list(fields, at, count):
    queue, expected = filled(fields)
    assert list(queue) == expected
    assert len(queue) == len(expected)
    assert list(queue.by_age()) == sorted(expected, key=lambda r: r.id)
    assert queue.first(count) == expected[:count]
    assert queue.first(count, at) == [r for r in expected if r.deadline_ns >= at][:count]
    assert queue.due(at) == [r for r in expected if r.deadline_ns < at]
    assert queue.due(at, 5) == [r for r in expected if 5 <= r.deadline_ns < at]
    later = [r.deadline_ns for r in expected if r.deadline_ns >= at]
    assert queue.soonest_from(at) == min(later, default=None)
    if expected:
        assert queue.head() == expected[0]
        assert queue.soonest_ns() == min(r.deadline_ns for r in expected)
    for position, request in enumerate(expected):
        assert queue.count_ahead(request) == position
        assert queue.nth(position) is request
        assert request in queue
    with pytest.raises(IndexError):
        queue.nth(len(expected))
    for priority in range(8):
        level = [r for r in expected if r.priority == priority]
        assert list(queue.level(priority)) == level
        assert queue.count_to(priority) == len([r for r in expected if r.priority <= priority])


def test_who_is_ahead_of_a_request_that_waits_in_another_queue():
    queue = ClassQueue(M)
    for request in (Request(1, M, 50, priority=2), Request(2, M, 70, priority=2)):
        queue.push(request)
    ahead = {priority: queue.count_ahead(Request(3, M, 60, priority)) for priority in (1, 2, 3)}
    assert ahead == {1: 0, 2: 1, 3: 2}


def test_what_is_not_there_can_not_be_removed():
    queue = ClassQueue(M)
    with pytest.raises(KeyError):
        queue.remove(Request(1, M, 5))


def test_an_equal_request_is_not_the_one_that_waits():
    queue = ClassQueue(M)
    queue.push(Request(1, M, 5))
    assert Request(1, M, 5) not in queue
