"""When tasks that were put off are looked at again."""

from __future__ import annotations

from scheduler.core.requests import RequestClass
from scheduler.durable.lanes import Waiting
from scheduler.durable.later import FIRST_DELAY_NS, LONGEST_DELAY_NS, TOGETHER, Later

KIND = RequestClass("m")
FAR_NS = 10**15


def waiting(seq: int) -> Waiting:
    return Waiting(seq, KIND, has_batch=False, priority=3, due_ns=FAR_NS, bytes=0, attempts=0)


def refused(count: int) -> Later:
    later = Later()
    for task in map(waiting, range(count)):
        for _ in range(20):
            later.refuse(task, 0)
    list(later.due(LONGEST_DELAY_NS - 1))
    return later


def test_the_delay_doubles_up_to_its_longest():
    later, task = Later(), waiting(1)
    delays = []
    for _ in range(12):
        later.refuse(task, 0)
        delays.append(later.next_ns())
        assert list(later.due(FAR_NS)) == [1]
    assert delays == [min(FIRST_DELAY_NS << n, LONGEST_DELAY_NS) for n in range(12)]


def test_a_success_brings_back_a_few_and_the_next_one_others():
    later = refused(2 * TOGETHER + 1)
    now_ns = LONGEST_DELAY_NS - 1
    found = []
    for _ in range(4):
        later.start_over(KIND, now_ns - FIRST_DELAY_NS)
        found.append(list(later.due(now_ns)))
    assert list(map(len, found)) == [TOGETHER, TOGETHER, 1, 0]
    assert sorted(seq for each in found for seq in each) == list(range(2 * TOGETHER + 1))


def test_another_class_is_not_brought_back():
    later = refused(3)
    later.start_over(RequestClass("other"), 0)
    assert list(later.due(LONGEST_DELAY_NS - 1)) == []
