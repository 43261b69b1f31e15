"""What a policy may decide, what it may not, and how a decision is told."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace

import pytest

from policies import POLICIES
from policies.edf import Edf
from scheduler.core.commands import CancelRun, Dispatch, WakeAt
from scheduler.core.errors import PolicyFailed
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetReport,
    TargetUp,
    Woken,
)
from scheduler.core.latency import LatencyCurve
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Decision, Drop, Hedge, Place, View, Wake
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, M, of, offer, outcomes, request, submit, target


@dataclass
class Scripted:
    """A policy that yields what it is given, once, and then waits; an exception it raises."""

    script: list[Decision | BaseException]

    def decide(self, view: View) -> Iterable[Decision]:
        while self.script:
            decision = self.script.pop(0)
            if isinstance(decision, BaseException):
                raise decision
            yield decision


class Panic(BaseException):
    """As modules in Rust raise it."""


def scripted(script) -> Scheduler:
    scheduler = Scheduler(Scripted(script))
    scheduler.handle(TargetUp(target(slots=1)), 0)
    return scheduler


ONE, TWO = request(1, 50), request(2, 60)


@pytest.mark.parametrize("fault", [OSError("disk"), Panic("disk"), SystemExit("disk")])
def test_a_policy_that_raises_midway_loses_nothing(fault):
    scheduler = scripted([Drop(ONE, "no"), Place("cpu:0", offer(), (TWO,), "go"), fault])
    with pytest.raises(PolicyFailed, match=f"{type(fault).__name__}: disk") as failure:
        scheduler.handle(Submitted((ONE, TWO)), 0)
    commands = failure.value.commands
    assert outcomes(commands) == {1: Outcome.INFEASIBLE}
    assert [sent.request_ids for sent in of(Dispatch, commands)] == [(2,)]
    assert commands[-1] == WakeAt(60 * MS + 1)
    scheduler.validate()
    swapped = scheduler.handle(PolicySwapped("edf", POLICIES["edf"]()), 1)
    assert swapped == []
    assert outcomes(scheduler.handle(BatchDone(1), 5)) == {2: Outcome.COMPLETED}


def test_a_policy_that_raises_when_asked_whether_it_watches_runs_loses_nothing():
    class Unsure(Edf):
        @property
        def watches_runs(self) -> bool:
            raise OSError("disk")

    scheduler = Scheduler(Unsure())
    scheduler.handle(TargetUp(target()), 0)
    scheduler.handle(Submitted((ONE,)), 0)
    with pytest.raises(PolicyFailed, match="OSError: disk") as failure:
        scheduler.handle(Cancelled(1), 1)
    assert outcomes(failure.value.commands) == {1: Outcome.CANCELLED}
    assert of(CancelRun, failure.value.commands) == [CancelRun(1)]


def test_a_failure_without_a_text_is_told_by_its_name():
    with pytest.raises(PolicyFailed, match=r"^MemoryError, at \S+test_decisions.py:\d+$"):
        scripted([MemoryError()]).handle(Submitted((ONE,)), 0)


class Mute(Exception):
    """Fails again when asked what it has to say."""

    def __str__(self) -> str:
        raise ValueError("nothing")


def test_a_failure_whose_text_cannot_be_had_is_one_all_the_same():
    told = r"^Mute: \(its text can't be had: ValueError\), at "
    with pytest.raises(PolicyFailed, match=told) as failed:
        scripted([Place("cpu:0", offer(), (ONE,), "go"), Mute()]).handle(Submitted((ONE,)), 0)
    assert [sent.request_ids for sent in of(Dispatch, failed.value.commands)] == [(1,)]


def test_nothing_in_the_text_of_a_failure_commands_a_terminal():
    with pytest.raises(PolicyFailed) as failed:
        scripted([OSError("größer\n\x1b[2J\x07")]).handle(Submitted((ONE,)), 0)
    assert str(failed.value).startswith("OSError: größer\n\\x1b[2J\\x07, at ")


def test_an_interruption_is_no_failure_of_the_policy():
    with pytest.raises(KeyboardInterrupt):
        scripted([KeyboardInterrupt()]).handle(Submitted((ONE,)), 0)


def test_arrivals_that_were_dropped_are_no_longer_in_the_view():
    seen = []

    class Dropper:
        def decide(self, view: View) -> Iterable[Decision]:
            for arrival in view.arrivals:
                yield Drop(arrival, "no")
                seen.append([r.id for r in view.arrivals])

    scheduler = Scheduler(Dropper())
    scheduler.handle(TargetUp(target()), 0)
    scheduler.handle(Submitted((ONE, TWO, request(3, 70))), 0)
    assert seen == [[2, 3], [3], []]


@pytest.mark.parametrize(
    ("decision", "complaint"),
    [
        (Place("gpu:9", offer(), (ONE,), ""), "target 'gpu:9' is not known"),
        (Place("cpu:0", offer("other"), (ONE,), ""), "does not offer that variant"),
        (Place("cpu:0", offer(), (), ""), "a batch there has 1 to 8 requests"),
        (Place("cpu:0", offer(), (ONE, TWO) * 5, ""), "a batch there has 1 to 8 requests"),
        (Place("cpu:0", offer(), (ONE, ONE), ""), "each request once"),
        (Place("cpu:0", offer(), (request(9, 50),), ""), "request 9 is not queued"),
        (Place("cpu:0", offer(), (replace(ONE, weight=2),), ""), "request 1 is not queued"),
        (Drop(request(9, 50), ""), "request 9 is not queued"),
        (Drop(replace(ONE, weight=2), ""), "request 1 is not queued"),
        (Wake(0, ""), "the time to wake up is not in the future"),
        ("nonsense", "that is no decision \\(Place, Drop, Wake, Hedge\\): nonsense"),
    ],
)
def test_the_impossible_is_refused(decision, complaint):
    scheduler = scripted([decision])
    with pytest.raises(PolicyFailed, match=f"Scripted decided the impossible: .*{complaint}"):
        scheduler.handle(Submitted((ONE, TWO)), 0)
    scheduler.validate()
    assert len(scheduler.queues[M]) == 2


def test_a_decision_is_shown_in_a_few_lines_whatever_it_holds():
    long = replace(offer(), latency_ns={size: tuple(range(1, 100)) for size in range(1, 20)})
    scheduler = scripted([Place("cpu:9", long, (ONE,), "")])
    said = r"'cpu:9' is not known: Place\(target_id=.*…$"
    with pytest.raises(PolicyFailed, match=said) as failed:
        scheduler.handle(Submitted((ONE,)), 0)
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize(
    ("returned", "told"),
    [(None, r"None; is a `return` missing\?"), (5, "5; it returns or yields decisions")],
)
def test_a_policy_that_returns_no_decisions_is_told_so(returned, told):
    scheduler = scripted([])
    scheduler.policy.decide = lambda view: returned  # type: ignore
    with pytest.raises(PolicyFailed, match=f"decide returned {told}"):
        scheduler.handle(Submitted((ONE,)), 0)


async def _coroutine() -> list[Decision]:
    return []


async def _generator() -> AsyncIterator[Decision]:
    yield Wake(1, "")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("decide", [_coroutine, _generator])
def test_an_async_policy_is_told_what_is_wrong_and_warns_of_nothing(decide):
    scheduler = scripted([])
    scheduler.policy.decide = lambda view: decide()  # type: ignore
    with pytest.raises(PolicyFailed, match=r"decide is `async`, which no policy can be$"):
        scheduler.handle(Submitted((ONE,)), 0)


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (Wake, (1e6, "soon"), "Wake.at_ns is a whole number of nanoseconds, not 1000000.0"),
        (Wake, (float("nan"), "soon"), "Wake.at_ns is a whole number of nanoseconds, not nan"),
        (Wake, (1, None), "Wake.reason is a text, not None"),
        (Drop, (1, "late"), "Drop.request is a request of the view, not 1"),
        (Drop, (ONE, None), "Drop.reason is a text, not None"),
        (Drop, (ONE, "", {"cpu:0": 0.5}), "Drop.earliest_budget_ns is whole nanoseconds by target"),
        (Drop, (ONE, "", {1: 2}), "Drop.earliest_budget_ns is whole nanoseconds by target"),
        (Drop, (ONE, "", None), "Drop.earliest_budget_ns is whole nanoseconds by target, not None"),
        (Place, ("cpu:0", None, (ONE,), ""), "Place.offer is an offer of the target, not None"),
        (Place, ("cpu:0", offer(), [ONE], ""), "Place.requests is a tuple of requests of the view"),
        (Hedge, ("cpu:0", offer(), (ONE,), 7), "Hedge.reason is a text, not 7"),
        (Drop, (ONE, "\udcff"), r"Drop.reason is a text without lone surrogates, not '\udcff'"),
        (Wake, (1, "\udcff"), r"Wake.reason is a text without lone surrogates, not '\udcff'"),
    ],
)
def test_a_decision_with_a_field_of_another_type_is_not_made(kind, fields, told):
    """Callers and the journal could not read it, so whoever makes it hears of it there."""
    with pytest.raises(TypeError, match=re.escape(told)):
        kind(*fields)


def test_a_reason_may_have_any_letters():
    assert Drop(ONE, "zu spät 🐌").reason.endswith("🐌")


@pytest.mark.parametrize("quantile", [0.05, 0.3, 0.5, 0.95])
def test_what_a_policy_counts_on_is_not_too_late_to_start(quantile):
    """Else a target skips it, it is placed again at the same moment, and so without end."""
    policy = POLICIES["edf"](quantile=quantile)
    scheduler = Scheduler(policy)
    scheduler.handle(TargetUp(target("cpu:0", offer(spread=0.5))), 0)
    done_ns = MS + LatencyCurve(offer(spread=0.5)).predict(1, quantile)
    commands = scheduler.handle(Submitted((replace(ONE, deadline_ns=done_ns),)), MS)
    (dispatch,) = of(Dispatch, commands)
    assert dispatch.latest_start_ns >= MS


def test_classes_and_variants_are_not_mixed():
    picky = request(3, 50, RequestClass("m", variant="int8"))
    scheduler = scripted([Place("cpu:0", offer(), (ONE, picky), "")])
    scheduler.handle(TargetReport("cpu:0", (offer(variant="int8"),)), 0)
    with pytest.raises(PolicyFailed, match="requests of one class"):
        scheduler.handle(Submitted((ONE, picky)), 0)
    scheduler.policy = Scripted([Place("cpu:0", offer(), (picky,), "")])
    with pytest.raises(PolicyFailed, match="does not accept that variant"):
        scheduler.handle(Woken(), 0)


def test_an_impossible_decision_tells_the_story_of_the_request():
    scheduler = scripted([Place("cpu:0", offer(), (ONE,), "first"), Drop(ONE, "too late")])
    with pytest.raises(PolicyFailed, match="request 1 is not queued") as failure:
        scheduler.handle(Submitted((ONE, TWO)), 0)
    assert "what=Submitted(" in str(failure.value)


def test_a_wish_to_wait_is_armed_told_and_void_at_the_next_decision():
    scheduler = scripted([Wake(9 * MS, "a fuller batch"), Wake(7 * MS, "or so")])
    assert scheduler.handle(Submitted((ONE,)), 0) == [WakeAt(7 * MS)]
    assert [entry.what for entry in scheduler.story(1)][1] == Wake(9 * MS, "a fuller batch")
    assert scheduler.handle(Woken(), 7 * MS) == [WakeAt(50 * MS + 1)]


# -- the story


def test_a_story_tells_the_whole_life(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90), request(2, 90))
    box.handle(BatchFailed(1, "busy", started=False), 1 * MS)
    box.handle(TargetUp(target()), 8 * MS)
    box.handle(Cancelled(1), 9 * MS)
    told = [type(entry.what).__name__ for entry in box.scheduler.story(1)]
    assert told == [
        *("Submitted", "Dispatch", "BatchFailed", "Dispatch", "TargetUp"),
        *("Dispatch", "Cancelled", "CancelRun", "Finish"),
    ]
    assert box.scheduler.story(77) == []


def test_nothing_is_kept_of_a_policy_that_was_replaced():
    box = Scheduler(Scripted([]))
    replaced = weakref.ref(box.policy)
    for _ in range(2):  # the second one comes as an event itself
        last = Edf()
        box.handle(PolicySwapped("edf", last), 0)
        gc.collect()
        assert replaced() is None
        replaced = weakref.ref(last)
        del last


def test_events_that_concern_no_request_take_no_room_in_the_story():
    box = Scheduler(Edf(), Limits(story_entries=4))
    box.handle(TargetUp(target()), 0)
    box.handle(Submitted((request(1, 90),)), 0)
    told = box.story(1)
    for at in range(1, 9):
        box.handle(TargetReport("cpu:0", (offer(),)), at)
        box.handle(TargetChanged(target()), at)
    assert box.story(1) == told != []


def test_a_story_keeps_no_measurements(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90))
    box.handle(TargetUp(target()), 1 * MS)
    told = [entry.what for entry in box.scheduler.story(1) if isinstance(entry.what, TargetUp)]
    assert [(what.target.id, what.target.offers) for what in told] == [("cpu:0", ())]
