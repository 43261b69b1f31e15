"""The way between a caller and the scheduler, in a simulation and out of a live replay."""

from __future__ import annotations

import pytest

from replay.caller import Caller, observed_caller
from replay.live.endings import LiveEnding
from replay.simulator import Arrival
from tests.core.world import MS, M


def ending(latency_ms: float, held_ms: float | None) -> LiveEnding:
    held_ns = None if held_ms is None else int(held_ms * MS)
    arrival = Arrival(5 * MS, M, 100 * MS)
    at_ns = arrival.at_ns + int(latency_ms * MS)
    return LiveEnding(0, arrival, arrival.at_ns, "completed", at_ns, held_ns=held_ns)


def test_a_request_is_with_the_scheduler_later_and_with_less_budget():
    caller = Caller(there_ns=2 * MS, back_ns=MS, margin_ns=4 * MS)
    long, short = caller.send([Arrival(10 * MS, M, 50 * MS, 1), Arrival(20 * MS, M, 6 * MS)])
    assert long == Arrival(12 * MS, M, 46 * MS, 1)
    assert (short.at_ns, short.budget_ns) == (22 * MS, 3 * MS)


def test_what_comes_while_the_scheduler_is_busy_is_read_at_once_after_that():
    caller = Caller(there_ns=2, each_ns=3)
    came = [0, 1, 2, 4, 8, 20]
    read = [arrival.at_ns for arrival in caller.send(Arrival(at, M, MS) for at in came)]
    assert read == [2, 5, 5, 11, 11, 22]


def test_the_way_is_what_the_box_did_not_have_the_request_for():
    caller = observed_caller([ending(21, 20), ending(33, 30), ending(500, None)])
    assert caller == Caller(MS, MS, 4 * MS)


def test_without_a_result_nothing_is_known_of_the_way():
    with pytest.raises(ValueError, match="no request had a result"):
        observed_caller([ending(500, None)])
