"""Second copies of running requests: one answer each, whatever becomes of the copies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from replay.laws import Watch
from scheduler.core.commands import CancelRun, Dispatch, Finish
from scheduler.core.errors import PolicyFailed
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Decision, Hedge, Place, View
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, of, offer, outcomes, request, submit, target

ONE, TWO = request(1, 50), request(2, 60)


class Doubled:
    """Sends what waits to the first open target, and a second copy of all that runs alone."""

    watches_runs = True

    def decide(self, view: View) -> Iterable[Decision]:
        for queue in list(view.queues.values()):
            for waiting in list(queue):
                target = next(iter(view.open_targets()), None)
                if target is not None:
                    yield Place(target.spec.id, target.usable(waiting.kind)[0], (waiting,), "go")
        for run in [run for t in view.targets.values() for run in t.runs.values()]:
            alone = [
                r
                for r in run.requests
                if sum(r.id in x.waiting for t in view.targets.values() for x in t.runs.values())
                == 1
            ]
            for target in view.open_targets():
                if target.spec.id != run.target_id and alone:
                    kind = alone[0].kind
                    yield Hedge(target.spec.id, target.usable(kind)[0], (alone.pop(),), "again")


@pytest.fixture
def pair():
    """Two targets with one slot each; request 1 runs on both, as run 1 and run 2."""
    watch = Watch(Doubled)
    for name in ("cpu:0", "gpu:0"):
        watch.handle(TargetUp(target(name, slots=1)), 0)
    assert [run.target_id for run in of(Dispatch, submit(watch, ONE))] == ["cpu:0", "gpu:0"]
    yield watch
    watch.close()


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_the_first_copy_that_is_done_answers_and_the_other_is_cancelled(pair, first, second):
    commands = pair.handle(BatchDone(first), 3 * MS)
    assert [(f.outcome, f.run_id) for f in of(Finish, commands)] == [(Outcome.COMPLETED, first)]
    assert of(CancelRun, commands) == [CancelRun(second)]
    assert outcomes(pair.handle(BatchFailed(second, "skipped", started=False), 4 * MS)) == {}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_copy_that_fails_leaves_the_other_alone(pair, lost):
    assert outcomes(pair.handle(BatchFailed(lost, "broken"), 3 * MS)) == {}
    assert outcomes(pair.handle(BatchDone(3 - lost), 4 * MS)) == {1: Outcome.COMPLETED}


@pytest.mark.parametrize("first", [1, 2])
def test_a_copy_whose_item_fails_leaves_the_other_alone(pair, first):
    assert outcomes(pair.handle(BatchDone(first, {1: "no memory"}), 3 * MS)) == {}
    assert outcomes(pair.handle(BatchDone(3 - first), 4 * MS)) == {1: Outcome.COMPLETED}


def test_an_item_that_fails_in_both_copies_fails():
    scheduler = Scheduler(Scripted(GO, Hedge("gpu:0", offer(), (ONE,), "again")))
    for name in ("cpu:0", "gpu:0"):
        scheduler.handle(TargetUp(target(name)), 0)
    scheduler.handle(Submitted((ONE,)), 0)
    assert outcomes(scheduler.handle(BatchDone(1, {1: "no memory"}), 3 * MS)) == {}
    (said,) = of(Finish, scheduler.handle(BatchDone(2, {1: "bad input"}), 4 * MS))
    assert (said.outcome, said.reason) == (Outcome.FAILED, "bad input")


def test_when_both_copies_fail_it_is_tried_again_while_attempts_last(pair):
    pair.handle(BatchFailed(1, "broken"), 2 * MS)
    for run_id in list(pair.scheduler.runs):
        said = pair.handle(BatchFailed(run_id, "broken"), 3 * MS)
    assert outcomes(said).get(1, Outcome.FAILED) is Outcome.FAILED


def test_a_target_that_is_lost_takes_its_copy_only(pair):
    assert outcomes(pair.handle(TargetDown("cpu:0", "gone"), 2 * MS)) == {}
    assert outcomes(pair.handle(BatchDone(2), 4 * MS)) == {1: Outcome.COMPLETED}


def test_whoever_cancels_cancels_both_copies(pair):
    commands = pair.handle(Cancelled(1), 1 * MS)
    assert outcomes(commands) == {1: Outcome.CANCELLED}
    assert of(CancelRun, commands) == [CancelRun(1), CancelRun(2)]


def test_at_the_deadline_both_copies_are_given_up(pair):
    commands = pair.handle(Woken(), 50 * MS + 1)
    assert outcomes(commands) == {1: Outcome.EXPIRED}
    assert len(of(CancelRun, commands)) == 2


class Scripted:
    watches_runs = True

    def __init__(self, *script: Decision) -> None:
        self.script = list(script)

    def decide(self, view: View) -> Iterable[Decision]:
        while self.script:
            yield self.script.pop(0)


GO = Place("cpu:0", offer(), (ONE,), "go")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([Hedge("gpu:0", offer(), (ONE,), "")], "request 1 is not running"),
        ([GO, Hedge("cpu:0", offer(), (ONE,), "")], "request 1 runs there already"),
        ([GO, Hedge("gpu:0", offer(), (TWO,), "")], "request 2 is not running"),
        ([GO, Hedge("tpu:0", offer(), (ONE,), "")], "target 'tpu:0' is not known"),
        ([GO, Hedge("gpu:0", offer(), (ONE, ONE), "")], "holds each request once"),
        (
            [GO, *[Hedge("gpu:0", offer(), (ONE,), "")] * 2],
            "request 1 has a second copy already",
        ),
    ],
)
def test_a_second_copy_that_can_not_be_is_refused(script, told):
    scheduler = Scheduler(Scripted(*script))
    scheduler.handle(TargetUp(target("cpu:0")), 0)
    scheduler.handle(TargetUp(target("gpu:0")), 0)
    with pytest.raises(PolicyFailed, match=told):
        scheduler.handle(Submitted((ONE, TWO)), 0)
    scheduler.validate()
