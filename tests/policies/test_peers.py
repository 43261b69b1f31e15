"""What the default sends to other boxes: what would be late here, or whatever comes in a flood."""

from __future__ import annotations

from dataclasses import replace

import pytest

import replay.conformance
from policies.goodput import Goodput
from replay.laws import Watch
from scheduler.core.events import BatchDone, TargetUp
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, offer, request, submit, target
from tests.policies.test_wrappers import sent

pytestmark = pytest.mark.no_cover

HOME = target("cpu:0", slots=1)
PEER = replace(
    target("box", offer(base_ms=3, item_ms=1, sizes=(1,)), slots=8),
    remote=True,
    width=8,
    peer=True,
)
CLOUD = replace(
    target("cloud", offer(base_ms=3), slots=4), remote=True, width=4, cost_per_request=0.1
)


def box(*specs: TargetSpec) -> Watch:
    watch = Watch(Goodput)
    for spec in specs:
        watch.handle(TargetUp(spec), 0)
    return watch


@pytest.mark.parametrize("check", replay.conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_laws_hold_with_other_boxes_and_a_cloud(check, monkeypatch):
    cpu, gpu, npu = replay.conformance.TARGETS
    far = replace(gpu, id="box", remote=True, peer=True, transfer_ns=(MS, 0.0))
    targets = cpu, far, replace(npu, remote=True, cost_per_request=1.0)
    monkeypatch.setattr(replay.conformance, "TARGETS", targets)
    check(Goodput)


def test_what_is_in_time_here_stays_here():
    watch = box(HOME, PEER)
    assert sent(submit(watch, request(1, 60))) == [("cpu:0", (1,))]
    assert sent(submit(watch, request(2, 60))) == []
    watch.close()


def test_what_would_be_late_here_goes_to_another_box_before_it_is_paid_for():
    watch = box(HOME, CLOUD, PEER)
    assert sent(submit(watch, request(1, 60))) == [("cpu:0", (1,))]
    assert sent(submit(watch, request(2, 5))) == [("box", (2,))]
    watch.close()


def test_a_model_that_only_another_box_has_is_run_there():
    watch = box(target("cpu:0", offer("x"), slots=1), PEER)
    assert sent(submit(watch, request(1, 60))) == [("box", (1,))]
    watch.close()


def test_a_box_with_much_more_than_it_can_do_uses_others_like_its_own():
    watch = box(HOME, PEER)
    # At best it does eight in 10 ms: these are the work of more than a second.
    submit(watch, *(request(number, 3) for number in range(1, 1_000)))
    for run_id in list(watch.scheduler.runs):
        watch.handle(BatchDone(run_id), 5 * MS)
    assert sent(submit(watch, request(2_000, 900), at_ms=6)) == [("cpu:0", (2_000,))]
    assert sent(submit(watch, request(2_001, 900), at_ms=6)) == [("box", (2_001,))]
    watch.close()


@pytest.mark.parametrize(("there", "goes"), [(3, True), (4, False)])
def test_what_would_keep_a_batch_small_goes_to_another_box_that_is_not_half_full(there, goes):
    watch = box(target("cpu:0", offer(base_ms=80, item_ms=20, sizes=(1, 2, 4)), slots=1), PEER)
    submit(watch, request(1, 900))
    for number in range(2, 2 + there):
        assert sent(submit(watch, request(number, 60))) == [("box", (number,))]
    assert sent(submit(watch, request(10, 230), request(11, 900))) == []
    assert sent(submit(watch, request(12, 900))) == ([("box", (10,))] if goes else [])
    watch.close()
