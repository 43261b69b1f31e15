"""In which form inputs are sent: as they are whenever that is in time, and never for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.edf import Edf
from policies.goodput import Goodput
from policies.spill import Spill
from replay.laws import MakePolicy, Watch
from scheduler.core.commands import Command, Dispatch, Finish, WakeAt
from scheduler.core.events import BatchDone, Submitted, TargetUp, Woken
from scheduler.core.forms import Form
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Place, View
from scheduler.core.requests import Request, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, of, offer, request, submit, target

A = RequestClass("a")
EXACT = A._replace(exact=True)
HALF = Form("a", "x as float16", 0.5, 0.1)
JPEG = Form("a", "x as jpeg", 0.05, 1.0)
KB = 100
"""What a request takes on the way: 100 ms as it is, 50 ms as HALF, 5 ms as JPEG."""


def far(*forms: Form, **more) -> TargetSpec:
    """10 ms there for a message, 1 ms for each 1,000 bytes, and 5 ms of work for each request."""
    fields = {"remote": True, "slots": 1, "lead_ns": 0, "transfer_ns": (10 * MS, 1e3), **more}
    return replace(target("far", offer("a", base_ms=0, item_ms=5)), forms=forms, **fields)


def sent(
    policy: MakePolicy, *requests: Request, forms: tuple[Form, ...] = (HALF, JPEG)
) -> list[Dispatch]:
    watch = Watch(policy)
    watch.handle(TargetUp(far(*forms)), 0)
    commands = submit(watch, *[replace(r, size_bytes=KB * 1000) for r in requests])
    found = of(Dispatch, commands)
    for dispatch in found:
        watch.handle(BatchDone(dispatch.run_id), 300 * MS)
    watch.close()
    return found


@pytest.mark.parametrize("policy", [Edf, Goodput, Spill])
@pytest.mark.parametrize(
    ("deadline_ms", "form"),
    [(500, ""), (116, ""), (114, "x as float16"), (80, "x as float16"), (60, "x as jpeg")],
)
def test_as_it_is_if_that_is_in_time_else_the_first_form_that_is(
    policy: MakePolicy, deadline_ms: int, form: str
):
    [dispatch] = sent(policy, request(1, deadline_ms, A))
    assert dispatch.form == form


def test_the_order_of_the_forms_is_the_owners():
    [dispatch] = sent(Edf, request(1, 80, A), forms=(JPEG, HALF))
    assert dispatch.form == "x as jpeg"


@pytest.mark.parametrize("policy", [Edf, Goodput, Spill])
def test_a_request_that_no_form_makes_in_time_is_not_sent(policy: MakePolicy):
    assert sent(policy, request(1, 20, A)) == []


@pytest.mark.parametrize("policy", [Edf, Goodput, Spill])
def test_what_must_be_exact_waits_for_no_form(policy: MakePolicy):
    assert sent(policy, request(1, 80, EXACT)) == []
    [dispatch] = sent(policy, request(1, 130, EXACT))
    assert dispatch.form == ""


def test_forms_of_another_model_are_none():
    other = replace(HALF, model="b")
    assert sent(Edf, request(1, 80, A), forms=(other,)) == []


def test_what_will_be_late_in_any_form_and_may_be_goes_as_it_is():
    late = replace(request(1, 20, A), accept_late=True)
    [dispatch] = sent(Edf, late)
    assert dispatch.form == ""
    in_time = replace(request(1, 80, A), accept_late=True)
    [dispatch] = sent(Edf, in_time)
    assert dispatch.form == "x as float16"


class Eager:
    """Sends what there is, in time or not."""

    def decide(self, view: View) -> Iterable[Place]:
        [found], [queue] = view.open_targets(), view.queues.values()
        yield Place(found.spec.id, found.offers["a"][0], (queue.head(),), "at once")


@pytest.mark.parametrize(("late", "form"), [(False, "x as jpeg"), (True, "")])
def test_what_no_form_makes_in_time_has_the_quickest_unless_it_may_be_late(late: bool, form: str):
    scheduler = Scheduler(Eager())
    scheduler.handle(TargetUp(far(HALF, JPEG)), 0)
    asked = request(1, 18, A, size_bytes=KB * 1000, accept_late=late)
    [dispatch] = of(Dispatch, scheduler.handle(Submitted((asked,)), 0))
    assert dispatch.form == form


def test_the_run_is_expected_as_soon_as_its_form_is_there():
    watch = Watch(Edf)
    watch.handle(TargetUp(far(HALF)), 0)
    submit(watch, replace(request(1, 80, A), size_bytes=KB * 1000))
    [run] = watch.scheduler.runs.values()
    assert run.transfer_ns == 60 * MS + 10_000
    watch.handle(BatchDone(1), 66 * MS)
    watch.close()


def test_what_is_on_the_way_before_it_counts_for_the_next():
    watch = Watch(Edf)
    single = (offer("a", base_ms=0, item_ms=5, sizes=(1,)),)
    watch.handle(TargetUp(far(HALF, JPEG, slots=4, width=4, offers=single)), 0)
    commands: list[Command] = []
    for number, deadline_ms in enumerate((116, 166, 230, 230), 1):
        asked = request(number, deadline_ms, A, size_bytes=KB * 1000)
        commands += submit(watch, asked)
        sends = [(0, dispatch.form) for dispatch in of(Dispatch, commands)]
    # One waits for another on the way; the next is sent when the first has left.
    while len(sends) < 4:
        wake = of(WakeAt, commands)[-1]
        commands = watch.handle(Woken(), wake.at_ns)
        sends += [(wake.at_ns // MS, dispatch.form) for dispatch in of(Dispatch, commands)]
    assert sends == [(0, ""), (0, "x as float16"), (100, "x as float16"), (150, "x as jpeg")]
    # Once all is answered the way is free, however long it was thought to take.
    for run_id in list(watch.scheduler.runs):
        watch.handle(BatchDone(run_id), 160 * MS)
    [again] = of(Dispatch, submit(watch, request(5, 322, A, size_bytes=KB * 1000), at_ms=160))
    assert again.form == ""
    watch.handle(BatchDone(again.run_id), 275 * MS)
    watch.close()


@given(
    deadlines=st.lists(st.integers(16, 400), min_size=1, max_size=4),
    late=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_nothing_is_made_smaller_that_would_be_in_time_or_late_either_way(
    deadlines: list[int], late: list[bool]
):
    requests = [
        replace(request(i, ms, A), accept_late=accept)
        for i, (ms, accept) in enumerate(zip(deadlines, late, strict=False), 1)
    ]
    by_id = {r.id: r for r in requests}
    spec = far(HALF, JPEG)
    for dispatch in sent(Edf, *requests):
        batch = [by_id[i] for i in dispatch.request_ids]
        size, count = len(batch) * KB * 1000, len(batch)
        done = {
            form.name if form else "": spec.transfer(size, form) + 5 * MS * count
            for form in (None, HALF, JPEG)
        }
        strict = [r.deadline_ns for r in batch if not r.accept_late]
        due_ns = min(strict or [r.deadline_ns for r in batch])
        in_time = [name for name, ns in done.items() if ns <= due_ns]
        if in_time:
            assert dispatch.form == in_time[0]
        elif not strict:
            assert dispatch.form == ""


@pytest.mark.parametrize("policy", [Goodput, Spill])
def test_another_target_that_is_in_time_with_inputs_as_they_are_goes_first(policy: MakePolicy):
    watch = Watch(policy)
    watch.handle(TargetUp(target("cpu:0", offer("a", base_ms=39, sizes=(1,)), slots=1)), 0)
    watch.handle(TargetUp(far(HALF, JPEG)), 0)
    first = submit(watch, request(1, 45, A, size_bytes=KB * 1000))
    assert [d.target_id for d in of(Dispatch, first)] == ["cpu:0"]
    # The device is busy until 40 ms and then needs 40 ms: in time for the one, not for the other.
    second = submit(watch, request(2, 95, A, size_bytes=KB * 1000))
    assert of(Dispatch, second) == []
    third = submit(watch, request(3, 95, A, size_bytes=KB * 1000))
    assert [(d.target_id, d.form) for d in of(Dispatch, third)] == [("far", "x as float16")]
    commands = watch.handle(BatchDone(1), 40 * MS)
    assert [d.target_id for d in of(Dispatch, commands)] == ["cpu:0"]
    for run_id in list(watch.scheduler.runs):
        watch.handle(BatchDone(run_id), 80 * MS)
    assert watch.scheduler.counts[Outcome.COMPLETED] == 3
    watch.close()


def test_a_counter_offer_knows_of_the_forms():
    watch = Watch(Goodput)
    watch.handle(TargetUp(far(HALF, JPEG)), 0)
    [refused] = of(Finish, submit(watch, replace(request(1, 20, A), size_bytes=KB * 1000)))
    assert refused.outcome is Outcome.INFEASIBLE
    assert 15 <= refused.detail["earliest_budget_ms"]["far"] <= 40
    watch.close()


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"share": 0.0}, {"byte_ns": -1.0}, {"share": float("nan")}]
)
def test_a_form_that_would_take_no_time_is_none(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="a form has a name"):
        replace(HALF, **wrong)
