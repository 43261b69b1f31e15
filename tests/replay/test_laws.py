"""What the laws demand of a policy where tensors take time to get to a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from policies import POLICIES
from replay.laws import LawBroken, Watch
from scheduler.core.events import TargetDown, TargetUp
from scheduler.core.policy import Decision, Place, View
from tests.core.world import MS, offer, request, submit, target

FAR = replace(target("far"), remote=True, transfer_ns=(0, 100.0))
"""Takes 3 ms for one request, and 0.1 ms for a kilobyte to get there."""
LATE = request(1, 3.05, size_bytes=1_000)
"""Would be in time there without its bytes."""


class Blind:
    """Counts the time of a batch alone."""

    quantile = 0.95

    def decide(self, view: View) -> Iterator[Decision]:
        for queue in list(view.queues.values()):
            yield Place("far", view.targets["far"].offers["m"][0], (queue.head(),), "blindly")


def test_a_request_whose_tensors_would_be_too_late_may_wait_for_another_target() -> None:
    watch = Watch(POLICIES["edf"])
    watch.handle(TargetUp(FAR), 0)
    watch.handle(TargetUp(target("cpu:0", offer(base_ms=0))), 0)
    watch.handle(TargetDown("cpu:0", "restarts", MS), 0)
    assert submit(watch, LATE)
    assert (watch.runs, watch.finished) == ({}, {})


def test_a_request_whose_tensors_will_be_too_late_is_doomed() -> None:
    watch = Watch(Blind)
    watch.handle(TargetUp(FAR), 0)
    with pytest.raises(LawBroken, match="doomed work"):
        submit(watch, LATE)
