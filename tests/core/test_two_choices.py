from __future__ import annotations

from collections import Counter
from dataclasses import replace

from policies.goodput import Goodput
from replay.laws import Watch
from scheduler.core.commands import Dispatch
from scheduler.core.events import TargetChanged, TargetUp
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import View
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import Run, TargetState
from scheduler.core.two_choices import nearest_first
from tests.core.world import MS, of, offer, outcomes, request, submit, target

PEER = TargetSpec("box", (offer(sizes=(1,)),), slots=8, width=8, remote=True, peer=True)
HERE = RequestClass("m", local=True)


def busy(spec: TargetSpec, runs: int) -> TargetState:
    state = TargetState(spec)
    state.add_offers(spec.offers)
    for number in range(runs):
        state.begin(Run(number, spec.id, spec.offers[0], (number,), {number}, 0, MS))
    return state


def test_the_devices_of_the_box_come_first_then_boxes_then_what_is_far():
    specs = [
        replace(PEER, id="cloud", peer=False),
        PEER,
        target("cpu:0"),
        replace(PEER, id="other"),
        target("cpu:1"),
    ]
    order = [state.spec.id for state in nearest_first(map(TargetState, specs), 7)]
    assert order[:2] == ["cpu:0", "cpu:1"]
    assert sorted(order[2:4]) == ["box", "other"]
    assert order[4] == "cloud"


def test_the_less_loaded_of_two_comes_first_and_nobody_gets_them_all():
    peers = [busy(replace(PEER, id=f"box-{n}"), runs=4 if n == 0 else 1) for n in range(8)]
    first = Counter(nearest_first(peers, now_ns)[0].spec.id for now_ns in range(2000))
    assert first["box-0"] == 0, "any other is less loaded"
    assert max(first.values()) < 2 * 2000 / 7
    assert len(first) == 7


def test_the_same_time_brings_the_same_order_of_all():
    peers = [busy(replace(PEER, id=f"box-{n}"), 0) for n in range(5)]
    orders = [[p.spec.id for p in nearest_first(peers, 123)] for _ in range(2)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == [f"box-{n}" for n in range(5)]


def test_what_came_from_another_box_stays_here():
    watch = Watch(Goodput)
    watch.handle(TargetUp(PEER), 0)
    commands = submit(watch, request(1, 100, HERE), request(2, 100))
    assert outcomes(commands) == {1: Outcome.UNAVAILABLE}
    assert [d.request_ids for d in of(Dispatch, commands)] == [(2,)]
    watch.handle(TargetUp(target("cpu:0")), MS)
    (run,) = of(Dispatch, submit(watch, request(3, 100, HERE), at_ms=1))
    assert run.target_id == "cpu:0"


def test_a_view_knows_how_old_a_report_is():
    watch = Watch(Goodput)
    watch.handle(TargetUp(PEER), 0)
    watch.handle(TargetUp(target("cpu:0")), 0)
    watch.handle(TargetChanged(PEER), 5 * MS)
    submit(watch, request(1, 100), at_ms=9)
    view = watch.policy.view
    assert isinstance(view, View)
    assert view.age_ns(view.targets["box"]) == 4 * MS
    assert view.age_ns(view.targets["cpu:0"]) == 0
