"""The kept plan is the one that would be made from the beginning, and mostly isn't made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

import replay.conformance
from policies.goodput import Goodput
from policies.parts.foresight import Foresight
from policies.parts.plan import HORIZON, Course, plan
from replay.laws import Watch
from scheduler.core.events import BatchDone, TargetReport, TargetUp
from scheduler.core.requests import Request, RequestClass
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, offer, request, submit, target

pytestmark = pytest.mark.no_cover

BOX = replace(target("box", offer(base_ms=3, sizes=(1,)), slots=8), remote=True, width=8, peer=True)

IDLE = replace(BOX, offers=(offer("other"),))
"""A box that has no model in use."""


class Counted:
    """How often requests are planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.added = 0
        add = Course.add

        def counted(course: Course, request: Request) -> None:
            self.added += 1
            add(course, request)

        monkeypatch.setattr(Course, "add", counted)

    def by(self, *requests: Request, watch: Watch, at_ms: float = 0) -> int:
        self.added = 0
        submit(watch, *requests, at_ms=at_ms)
        return self.added


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def busy_box(queued: int, box: TargetSpec = BOX) -> Watch:
    """A box whose own device is busy, with so many requests queued, and another box."""
    watch = Watch(Goodput)
    watch.handle(TargetUp(target("cpu:0", offer(base_ms=1, item_ms=0.1), slots=1)), 0)
    watch.handle(TargetUp(box), 0)
    for number in range(queued + 1):
        submit(watch, request(number + 1, 900 + number / 10))
    return watch


@pytest.fixture
def compared(monkeypatch):
    """Compares each kept plan with one made from the beginning; the late requests of each."""
    kept = Foresight.unplaced
    late: list[int] = []

    def unplaced(self: Foresight) -> list[Request]:
        found = kept(self)
        assert found == plan(self._outlook).unplaced
        late.append(len(found))
        return found

    monkeypatch.setattr(Foresight, "unplaced", unplaced)
    return late


@pytest.mark.parametrize("check", replay.conformance.CHECKS, ids=lambda check: check.__name__)
def test_it_is_the_plan_made_from_the_beginning(check, compared, monkeypatch):
    cpu, gpu, npu = replay.conformance.TARGETS
    far = replace(gpu, id="box", remote=True, peer=True, transfer_ns=(MS, 0.0))
    targets = cpu, far, replace(npu, remote=True, cost_per_request=1.0)
    monkeypatch.setattr(replay.conformance, "TARGETS", targets)
    check(Goodput)


def test_an_offer_that_is_reported_later_is_planned_with(compared):
    watch = busy_box(queued=0, box=IDLE)
    submit(watch, request(2, 1.5, accept_late=True))
    assert compared[-1] == 1
    quick = offer(variant="quick", base_ms=0.1, item_ms=0.01)
    watch.handle(TargetReport("cpu:0", (quick,)), 0)
    assert compared[-1] == 0
    watch.close()


def test_a_prediction_that_is_no_longer_believed_is_not_planned_with(compared):
    watch = Watch(Goodput)
    slow = offer("slow", base_ms=5_000, sizes=(1,))
    watch.handle(TargetUp(target("cpu:0", offer(), slow, slots=1)), 0)
    submit(watch, request(1, 9_000))
    watch.handle(BatchDone(1), 500 * MS)  # it is believed to be that slow for two seconds
    submit(watch, request(2, 9_000, RequestClass("slow")), at_ms=501)
    watch.handle(TargetUp(IDLE), 502 * MS)
    submit(watch, request(3, 5_900, accept_late=True), at_ms=502)
    assert compared[-1] == 1
    submit(watch, request(20, 9_000), at_ms=3_000)
    assert compared[-1] == 0
    watch.close()


def test_an_arrival_behind_the_others_is_all_that_is_planned(counted):
    watch = busy_box(queued=50)
    assert counted.by(request(100, 950), watch=watch) == 1
    watch.close()


def test_an_arrival_before_others_is_planned_with_them(counted):
    watch = busy_box(queued=50)
    assert counted.by(request(100, 904.05), watch=watch) == 11
    watch.close()


def test_what_comes_beyond_the_horizon_is_not_planned(counted):
    watch = busy_box(queued=HORIZON)
    assert counted.by(request(HORIZON + 100, 990), watch=watch) == 0
    assert counted.by(request(HORIZON + 101, 899), watch=watch) == HORIZON
    watch.close()


def test_after_a_batch_all_is_planned_anew(counted):
    watch = busy_box(queued=50)
    counted.added = 0
    watch.handle(BatchDone(1), MS)
    assert counted.added == 50
    watch.close()
