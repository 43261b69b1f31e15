"""Where a request goes that a remote target has failed."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from policies import POLICIES
from policies.parts.outlook import Outlook
from replay.laws import Watch
from scheduler.core.commands import Command, Dispatch, WakeAt
from scheduler.core.events import BatchDone, BatchFailed, TargetUp, Woken
from scheduler.core.outcomes import Outcome
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, of, offer, request, submit, target

pytestmark = pytest.mark.no_cover

each_policy = pytest.mark.parametrize("policy", sorted(POLICIES))

DEVICE = target("cpu:0", offer(base_ms=20, sizes=(1,)), slots=1)
CLOUD = replace(target("cloud", offer(base_ms=2, sizes=(1,)), slots=4), remote=True, width=4)


class Box:
    """A box whose cloud fails whatever it is sent."""

    def __init__(self, policy: str, *specs: TargetSpec) -> None:
        self.watch = Watch(POLICIES[policy])
        for spec in specs:
            self.watch.handle(TargetUp(spec), 0)
        self.log: list[Command] = []

    def submit(self, number: int, deadline_ms: float, at_ms: float = 0) -> None:
        self.log = submit(self.watch, request(number, deadline_ms), at_ms=at_ms)

    def places_of(self, number: int) -> list[str]:
        runs = self.watch.runs.values()
        return [run.target_id for run in runs if number in run.request_ids]

    def play(self, until_ms: int = 400) -> None:
        """The device answers each batch after 21 ms and the cloud fails each after 1 ms."""
        known: dict[int, int] = {}
        for now_ms in range(self.watch.scheduler.now_ns // MS, until_ms):
            for run in list(self.watch.scheduler.runs.values()):
                ends_ms = known.setdefault(run.id, now_ms + (21 if run.target_id == "cpu:0" else 1))
                if ends_ms != now_ms:
                    continue
                done = run.target_id == "cpu:0"
                event = BatchDone(run.id) if done else BatchFailed(run.id, "500", started=True)
                self.watch.handle(event, now_ms * MS)
            self.watch.handle(Woken(), now_ms * MS)


@each_policy
def test_what_the_cloud_failed_is_done_by_the_device_if_that_is_in_time(policy):
    box = Box(policy, DEVICE, CLOUD)
    for number in range(1, 5):
        box.submit(number, 200 + number)
    box.play()
    box.watch.close()
    for number in range(1, 5):
        assert box.watch.finished[number].outcome is Outcome.COMPLETED
        assert box.places_of(number) in (["cpu:0"], ["cloud", "cpu:0"])


@each_policy
def test_what_only_the_cloud_has_is_tried_there_again(policy):
    box = Box(policy, target("cpu:0", offer("other"), slots=1), CLOUD)
    box.submit(1, 200)
    box.play()
    box.watch.close()
    assert box.places_of(1) == ["cloud", "cloud"]
    assert box.watch.finished[1].outcome is Outcome.FAILED


@each_policy
def test_what_the_device_would_finish_late_is_tried_in_the_cloud_again(policy):
    box = Box(policy, DEVICE, CLOUD)
    box.submit(1, 15)
    box.play()
    box.watch.close()
    assert box.places_of(1) == ["cloud", "cloud"]


def test_the_other_of_two_clouds_gets_what_the_first_failed():
    cloud = replace(CLOUD, cost_per_request=0.1)
    box = Box("spill", DEVICE, cloud, replace(cloud, id="other", cost_per_request=0.2))
    box.submit(1, 15)
    box.play()
    box.watch.close()
    assert box.places_of(1) == ["cloud", "other"]


@pytest.mark.parametrize("policy", ["goodput", "edf", "cheapest"])
def test_what_waits_for_a_device_that_hangs_goes_to_the_cloud_after_all(policy):
    box = Box(policy, DEVICE)
    box.submit(1, 400)
    box.watch.handle(TargetUp(CLOUD), 0)
    box.submit(2, 60)
    (run,) = [run for run in box.watch.scheduler.runs.values() if run.target_id == "cloud"]
    said = box.watch.handle(BatchFailed(run.id, "500", started=True), MS)
    while not of(Dispatch, said):
        said = box.watch.handle(Woken(), of(WakeAt, said)[-1].at_ns)
    assert box.places_of(2) == ["cloud", "cloud"]
    assert box.watch.scheduler.now_ns <= 57 * MS
    box.watch.close()


@pytest.mark.parametrize("policy", ["goodput", "spill", "cheapest"])
def test_what_was_failed_once_is_not_remembered_for_ever(policy):
    box = Box(policy, target("cpu:0", offer("other"), slots=1), CLOUD)
    for number in range(1, 30):
        box.submit(number, number * 20, at_ms=number * 20 - 18)
        box.play(number * 20)
    box.watch.close()
    found = [x for x in gc.get_objects() if isinstance(x, Outlook) and x.__dict__.get("_failed")]
    assert all(len(outlook._failed) < 5 for outlook in found)
    assert found
