"""Holding the first of a bunch."""

from __future__ import annotations

import pytest

from policies.goodput import Goodput
from policies.parts.gathering import SHARE
from replay.laws import Watch
from scheduler.core.commands import Command, Dispatch, WakeAt
from scheduler.core.events import BatchDone, Event, Submitted, TargetUp, Woken
from tests.core.world import MS, of, offer, request, target
from tests.policies.playing import on_time, standard

TENTH = SHARE * 20
"""Of the time that one request takes, in milliseconds."""


class Box:
    """A device that takes 10 ms and 10 ms more per request, one batch at a time."""

    def __init__(self, *sizes: int, ms: float = 10) -> None:
        """Is idle."""
        offers = offer(base_ms=ms, item_ms=ms, sizes=sizes or (1, 2, 4, 8))
        self.ms = ms
        self.watch = Watch(Goodput)
        self.now_ms = 0.0
        self.last_id = 0
        self.runs: list[tuple[int, float]] = []
        self.handle(TargetUp(target("cpu:0", offers, slots=1)))

    def handle(self, event: Event) -> list[Command]:
        commands = self.watch.handle(event, int(self.now_ms * MS))
        for sent in of(Dispatch, commands):
            took_ms = self.ms * (1 + len(sent.request_ids))
            self.runs.append((sent.run_id, self.now_ms + took_ms))
        return commands

    def come(self, *after_ms: float, budget_ms: float = 500) -> list[Command]:
        """What is to be done while requests come so long after the first of them."""
        began_ms, commands = self.now_ms, []
        for each in after_ms:
            self.last_id, self.now_ms = self.last_id + 1, began_ms + each
            one = request(self.last_id, self.now_ms + budget_ms)
            commands += self.handle(Submitted((one,)))
        return commands

    def wake(self, after_ms: float) -> list[Command]:
        self.now_ms += after_ms
        return self.handle(Woken())

    def end(self) -> None:
        """Until nothing runs, and a second later."""
        if not self.runs:
            self.wake(10)
        while self.runs:
            run_id, self.now_ms = self.runs.pop()
            self.handle(BatchDone(run_id))
        self.now_ms += 1_000

    def learn(self) -> None:
        """Of bunches of two, a second apart, after one that could not be served."""
        self.come(0, budget_ms=1)
        for _ in range(6):
            self.end()
            self.come(0, 0.1)
        self.end()


def sizes(commands: list[Command]) -> list[int]:
    """How many requests each batch has that is sent."""
    return [len(sent.request_ids) for sent in of(Dispatch, commands)]


def test_what_comes_alone_is_never_held():
    box = Box()
    for _ in range(20):
        assert sizes(box.come(0)) == [1]
        box.end()
    box.watch.close()


def test_after_some_bunches_the_first_of_one_waits_for_the_others():
    box = Box()
    box.learn()
    assert sizes(box.come(0, 0.1, 0.2, 0.3)) == []
    assert sizes(box.wake(SHARE * 50)) == [4]
    box.watch.close()


def test_nothing_waits_where_all_is_in_time_without():
    box = Box()
    for _ in range(20):
        assert sizes(box.come(0, 0.1)) == [1]
        box.end()
    box.watch.close()


def test_it_waits_for_a_tenth_of_what_its_batch_takes():
    box = Box()
    box.learn()
    began_ms, commands = box.now_ms, box.come(0)
    assert sizes(commands) == []
    assert of(WakeAt, commands)[-1].at_ns == int((began_ms + TENTH) * MS)
    assert sizes(box.wake(TENTH - 0.1)) == []
    assert sizes(box.wake(0.1)) == [1]
    box.watch.close()


def test_a_full_batch_goes_at_once():
    box = Box(1, 2)
    box.learn()
    assert sizes(box.come(0, 0.1)) == [2]
    box.watch.close()


@pytest.mark.parametrize(("budget_ms", "held_ms"), [(20.5, 0.0), (22.0, 1.0), (500, TENTH)])
def test_nothing_is_held_near_its_deadline(budget_ms, held_ms):
    box = Box()
    box.learn()
    assert sizes(box.come(0, budget_ms=budget_ms)) == ([] if held_ms else [1])
    if held_ms:
        assert sizes(box.wake(held_ms - 0.1)) == []
        assert sizes(box.wake(0.1)) == [1]
    box.watch.close()


def test_what_no_longer_comes_in_bunches_is_held_no_longer():
    box = Box()
    box.learn()
    held = 0
    while not sizes(box.come(0)):
        held += 1
        box.end()
    assert 1 <= held <= 5
    box.watch.close()


def test_what_is_done_sooner_than_a_timer_could_wake_is_not_held():
    box = Box(ms=1)
    box.learn()
    for _ in range(10):
        assert sizes(box.come(0, 0.1)) == [1]
        box.end()
    box.watch.close()


@pytest.mark.no_cover
def test_cameras_in_step_gain_by_it(monkeypatch):
    experiment, seeds = standard("cameras-in-step", requests=1_200), (1, 2, 3)
    held = on_time(experiment, seeds=seeds)
    monkeypatch.setattr("policies.parts.gathering.SHARE", 0.0)
    assert held > on_time(experiment, seeds=seeds) + 0.04
