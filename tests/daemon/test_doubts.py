"""What was measured is measured again where a target idles and its requests are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from scheduler.core.belief import FIRST_NS, MOST_NS
from scheduler.core.requests import RequestClass
from scheduler.core.targets import Run, TargetState
from scheduler.daemon.doubts import IDLE_NS, RUNS, SHARE, Doubts
from scheduler.daemon.submission import Submission
from tests.core.world import offer, target

S = 1_000_000_000
MS = 1_000_000
LATER = IDLE_NS + 1
REFUSED = Submission(
    RequestClass("m"), [], memoryview(bytes(1_000)), 0, 3, 1.0, False, print, budget_ns=50 * MS
)


def device(device_id: str, base_ms: float = 2, model: str = "m") -> TargetState:
    one = offer(model, base_ms=base_ms)
    state = TargetState(target(device_id, one))
    state.add_offers((one,))
    return state


def asked(doubts: Doubts, devices: list[TargetState], now_ns: int) -> str | None:
    found = doubts.refused(REFUSED, devices, now_ns)
    return None if found is None else found[0]


def test_the_quickest_idle_device_is_asked_and_the_next_a_second_later():
    doubts, devices = Doubts(), [device("cpu:0", 9), device("gpu:0", 3)]
    assert asked(doubts, devices, LATER) == "gpu:0"
    assert asked(doubts, devices, LATER + IDLE_NS - 1) is None
    assert asked(doubts, devices, LATER + IDLE_NS) == "cpu:0"


def test_a_target_that_was_removed_starts_over():
    doubts = Doubts()
    assert asked(doubts, [device("box-b"), device("cpu:0", 9)], LATER) == "box-b"
    doubts.forget("box-b")
    assert asked(doubts, [device("box-b"), device("cpu:0", 9)], LATER + IDLE_NS) == "box-b"


@pytest.mark.parametrize(
    "change",
    [
        {"last_done_ns": LATER - IDLE_NS + 1},
        {"up": False},
        {"runs": {1: None}},
        {"_opens_ns": LATER + 1},
    ],
    ids=["works now and then", "down", "busy", "closed"],
)
def test_only_what_idles_is_asked(change):
    busy = device("cpu:0")
    for name, value in change.items():
        setattr(busy, name, value)
    assert asked(Doubts(), [busy], LATER) is None


def test_a_device_on_which_a_slow_model_would_keep_others_waiting_is_calm_for_longer():
    """A model of 3 s was measured a second after a request for another one, which then waited."""
    calm_ns = 10 * 3 * S
    used = device("cpu:0", 2_999)
    used.last_done_ns = LATER
    assert asked(Doubts(), [used], LATER + calm_ns - 1) is None
    assert asked(Doubts(), [used], LATER + calm_ns) == "cpu:0"


def busy_device(base_ms: float = 100) -> TargetState:
    """It runs another model all the time."""
    busy = device("cpu:0", base_ms)
    other = offer("other", base_ms=2)
    busy.add_offers([other])
    busy.begin(Run(1, "cpu:0", other, (1,), {1}, LATER, 2 * MS))
    return busy


def test_a_model_whose_measurement_alone_forbids_it_is_measured_on_a_busy_device_too():
    now_ns = 3_600 * S
    assert asked(Doubts(), [busy_device()], now_ns) == "cpu:0"
    assert asked(Doubts(), [busy_device(), device("gpu:0", 200)], now_ns) == "gpu:0", "it idles"
    assert asked(Doubts(), [busy_device(40)], now_ns) is None, "it was refused for the load"


def test_a_doubt_promises_nothing():
    """`laxity status` tells how well the policy's predictions are kept, not those of a doubt."""
    for state in (device("cpu:0"), busy_device()):
        assert asked(Doubts(), [state], 3_600 * S) == "cpu:0"
        assert state.calibration() == []


def test_a_model_that_a_busy_device_runs_tells_of_itself():
    busy, now_ns = busy_device(), 3_600 * S
    busy.curve(busy.offers["m"][0]).observe(1, 100 * MS, now_ns - 1)
    assert asked(Doubts(), [busy], now_ns) is None


def test_a_busy_device_is_disturbed_for_a_small_share_of_its_time():
    doubts, busy, runs_ns, end_ns = Doubts(), busy_device(), 0, 1_000 * S
    models = [f"m{n}" for n in range(50)]
    busy.add_offers([offer(model, base_ms=100) for model in models])
    refused = [replace(REFUSED, kind=RequestClass(model, None, ())) for model in models]
    for now_ns in range(0, end_ns, S):
        for each in refused:
            found = doubts.refused(each, [busy], now_ns)
            if found is not None:
                runs_ns += RUNS * busy.curve(found[1]).predict(1, 0.5)
    assert 0 < runs_ns <= SHARE * end_ns


def test_what_has_not_the_model_is_not_asked():
    assert asked(Doubts(), [device("cpu:0", model="other")], LATER) is None


def test_deadlines_that_nothing_could_meet_cost_ever_less():
    doubts, devices = Doubts(), [device("cpu:0")]
    moments_ns = [
        now_ns for now_ns in range(LATER, 4000 * S, S) if asked(doubts, devices, now_ns) is not None
    ]
    waits_ns = [after - before for before, after in pairwise(moments_ns)]
    assert waits_ns[0] == FIRST_NS
    assert waits_ns[:7] == [min(MOST_NS, FIRST_NS << n) for n in range(7)]
    assert max(waits_ns) == MOST_NS
    long_after_ns = moments_ns[-1] + 2 * MOST_NS
    assert asked(doubts, devices, long_after_ns) == "cpu:0"
    assert asked(doubts, devices, long_after_ns + FIRST_NS) == "cpu:0"


@pytest.mark.parametrize(
    ("base_ms", "byte_ns", "measured"),
    [(0, 0.0, None), (0, 50_000.0, "far"), (24, 50_000.0, "far"), (25, 50_000.0, None)],
)
def test_money_is_only_spent_where_it_may_be_why(
    base_ms: int, byte_ns: float, measured: str | None
):
    """Of 50 ms: for nothing that was measured, for that, and for the round trip alone."""
    far = device("far")
    way_ns = base_ms * MS, byte_ns
    far.spec = replace(far.spec, remote=True, cost_per_request=1.0, transfer_ns=way_ns)
    assert asked(Doubts(), [far], LATER) == measured


def test_a_model_that_a_cloud_never_gets_is_measured_while_others_keep_it_busy():
    far = device("far")
    far.spec = replace(far.spec, remote=True, width=4, slots=4)
    far.add_offers([offer("other")])
    far.last_done_ns = LATER - 1
    assert asked(Doubts(), [far], LATER) == "far"
    far.curve(far.offers["m"][0]).observe(1, 2 * MS, LATER - 1)
    assert asked(Doubts(), [far], LATER) is None, "it was learned but now"
