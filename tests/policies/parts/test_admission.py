"""Goodput's word: what it refuses, what it promises, and what it offers instead."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from policies.goodput import Goodput
from policies.parts.caution import BROKEN, IDLED, MISSED
from replay.laws import Watch
from scheduler.core.commands import Dispatch, Finish
from scheduler.core.events import BatchDone, Submitted, TargetDown, TargetUp, Woken
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import Request, RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, M, of, offer, outcomes, request, submit, target

SPECS = (
    target("cpu:0", offer("a", spread=0.2), offer("b", base_ms=0, item_ms=3, spread=0.1), slots=1),
    target("gpu:0", offer("a", "fp16", 3, 0.1, (1, 4, 16)), offer("a", "fp32", 5, rank=1)),
    target("npu:0", offer("b", base_ms=1), offer("c", base_ms=4)),
)
A = RequestClass("a")
BUDGETS = st.integers(1, 60_000).map(lambda us: us * 1_000)
REQUESTS = st.tuples(
    st.sampled_from("aaabc").map(RequestClass),
    BUDGETS,
    st.sampled_from((3, 3, 3, 1, 6)),
    st.sampled_from((1.0, 1.0, 0.5, 2.0)),
    st.booleans(),
)


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(
    up=st.integers(1, 3),
    before=st.lists(REQUESTS, max_size=60),
    gap_us=st.integers(0, 900),
    down=st.booleans(),
    asked=REQUESTS,
)
@example(
    up=1,
    before=[(A, MS, 3, 1.0, False)] * 8 + [(A, 4_601_000, 3, 1.0, False)],
    gap_us=0,
    down=False,
    asked=(A, MS, 3, 1.0, False),
)
def test_a_counter_offer_is_kept(up, before, gap_us, down, asked):
    """The same request again at once, with that budget and nothing else changed, is admitted.

    Nobody has to give way to it, unless somebody waits beside an idle target for a larger batch.
    """
    scheduler = Scheduler(Goodput())
    for spec in SPECS[:up]:
        scheduler.handle(TargetUp(spec), 0)
    now_ns = 0
    for request_id, (kind, budget_ns, priority, weight, late) in enumerate(before, 1):
        now_ns = request_id * gap_us * 1_000
        wanted = Request(request_id, kind, now_ns + budget_ns, priority, weight, 0, late)
        scheduler.handle(Submitted((wanted,)), now_ns)
    if down:
        scheduler.handle(TargetDown("cpu:0", "restarts", 5 * MS), now_ns)
    scheduler.handle(Woken(), now_ns)
    kind, budget_ns, priority, weight, _ = asked
    wanted = Request(1_000, kind, now_ns + budget_ns, priority, weight)
    said = scheduler.handle(Submitted((wanted,)), now_ns)
    refusals = [finish for finish in of(Finish, said) if finish.request_id == 1_000]
    assume(refusals and refusals[0].outcome is Outcome.INFEASIBLE)
    assert len(of(Finish, said)) == 1
    assert not of(Dispatch, said)
    offers = refusals[0].detail["earliest_budget_ms"]
    assert offers
    for again_id, budget_ms in enumerate(set(offers.values()), 1_001):
        assert budget_ms * MS > budget_ns
        again = Request(again_id, kind, now_ns + round(budget_ms * MS), priority, weight)
        idle = any(not target.runs for target in scheduler.targets.values())
        ended = outcomes(scheduler.handle(Submitted((again,)), now_ns))
        assert ended == {} or (idle and again_id not in ended)


def full(*deadlines_ms: float, policy=Goodput, **rest) -> Watch:
    """A box whose target runs one request of 4 ms at a time, with these queued behind one."""
    watch = Watch(policy)
    watch.handle(TargetUp(target("cpu:0", offer(base_ms=4, item_ms=0, sizes=(1,)), slots=1)), 0)
    submit(watch, request(1, 90))
    for request_id, deadline_ms in enumerate(deadlines_ms, 2):
        assert outcomes(submit(watch, request(request_id, deadline_ms, **rest))) == {}
    return watch


def test_what_would_miss_behind_the_others_is_refused_with_the_budget_that_would_do():
    watch = full(9, 13, 17)
    said = submit(watch, request(9, 18))
    assert outcomes(said) == {9: Outcome.INFEASIBLE}
    (finish,) = of(Finish, said)
    assert finish.reason == "would be 2.0 ms late behind what was admitted before"
    assert finish.detail["stage"] == "refused"
    assert finish.detail["earliest_budget_ms"]["cpu:0"] == pytest.approx(20.0, abs=0.05)
    watch.close()


@pytest.mark.parametrize(("deadline_ms", "late"), [(7, "1.0"), (8 - 1e-5, "0.1")])
def test_what_would_miss_with_nobody_before_it_is_not_told_of_others(deadline_ms, late):
    said = submit(full(), request(9, deadline_ms))
    assert outcomes(said) == {9: Outcome.INFEASIBLE}
    assert of(Finish, said)[0].reason == f"would be {late} ms late at the earliest"


def test_a_request_that_matters_more_is_admitted_before_others():
    watch = full(9, 13, 17)
    assert outcomes(submit(watch, request(9, 8, weight=2.0))) == {}
    watch.close()


def test_a_request_of_a_higher_priority_is_admitted_before_others():
    watch = full(9, 13, 17)
    assert outcomes(submit(watch, request(9, 8, priority=1))) == {}
    watch.close()


def test_those_who_accept_late_results_are_promised_nothing():
    watch = full(9, 13, 17, accept_late=True)
    assert outcomes(submit(watch, request(9, 8))) == {}
    watch.close()


def test_arrivals_of_one_moment_do_not_stand_in_each_others_way_before_they_are_admitted():
    watch = full()
    said = submit(watch, *(request(i, 4 + 4 * 3) for i in range(2, 8)))
    assert sorted(outcomes(said)) == [5, 6, 7]
    watch.close()


def test_work_on_other_targets_is_no_reason_to_refuse():
    watch = Watch(Goodput)
    watch.handle(TargetUp(target("cpu:0", offer("a"))), 0)
    watch.handle(TargetUp(target("gpu:0", offer("b"))), 0)
    crowd = [request(i, 40, RequestClass("a")) for i in range(1, 21)]
    submit(watch, *crowd)
    said = submit(watch, request(50, 3.5, RequestClass("b")))
    assert [sent.request_ids for sent in of(Dispatch, said)] == [(50,)]
    watch.close()


def test_what_was_admitted_and_can_not_be_kept_is_evicted_with_a_counter_offer():
    watch = full(9, 13, 17)
    said = watch.handle(BatchDone(1), 12 * MS)
    evicted = [finish for finish in of(Finish, said) if finish.outcome is Outcome.INFEASIBLE]
    assert evicted[0].detail["stage"] == "evicted"
    assert set(evicted[0].detail["earliest_budget_ms"]) == {"cpu:0"}
    watch.close()


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_full_batch_is_admitted_whole(size):
    watch = Watch(Goodput)
    watch.handle(TargetUp(target("cpu:0", offer(base_ms=8, item_ms=0.25))), 0)
    said = submit(watch, *(request(i, 40) for i in range(1, size + 1)))
    assert outcomes(said) == {}
    watch.close()


def long_and_short() -> Watch:
    """A box with 36 ms of short requests queued."""
    short, long = offer("a", base_ms=2, item_ms=0, sizes=(1,)), offer("b", base_ms=8, sizes=(1,))
    watch = Watch(Goodput)
    watch.handle(TargetUp(target("cpu:0", short, long, slots=1)), 0)
    submit(watch, *(request(i, 60, RequestClass("a")) for i in range(1, 19)))
    return watch


def test_what_takes_long_is_the_first_to_be_refused():
    """All would be in time, the long one at 45 ms; four short ones can be in its place."""
    watch = long_and_short()
    a, b = RequestClass("a"), RequestClass("b")
    submit(watch, *(request(i, 200, a) for i in range(22, 32)))
    assert outcomes(submit(watch, request(32, 62, b))) == {32: Outcome.INFEASIBLE}
    assert outcomes(submit(watch, request(33, 62, a))) == {}
    assert outcomes(submit(watch, request(34, 62, b, weight=5.0))) == {}
    watch.close()


def test_what_takes_long_is_admitted_where_nothing_has_to_wait_for_it():
    watch = long_and_short()
    assert outcomes(submit(watch, request(21, 62, RequestClass("b")))) == {}
    watch.close()


@pytest.mark.parametrize(("priority", "refused"), [(3, True), (7, False)])
def test_what_costs_more_is_refused_for_what_is_as_important_alone(priority, refused):
    dear, cheap = (
        offer(model, base_ms=ms, item_ms=0, sizes=(1,))
        for model, ms in (("dear", 20), ("cheap", 5))
    )
    scheduler = Scheduler(Goodput())
    scheduler.handle(TargetUp(target("cpu:0", dear, cheap, slots=1)), 0)
    waiting = [request(i, 60, RequestClass("cheap"), priority=priority) for i in range(1, 6)]
    scheduler.handle(Submitted(tuple(waiting)), 0)
    said = scheduler.handle(Submitted((request(9, 35, RequestClass("dear"), priority=3),)), 0)
    assert (9 in outcomes(said)) == refused


def caution(policy: Goodput) -> float:
    """By what the waits of ordinary requests are multiplied."""
    pace = policy.admission.pace(RequestClass("m"))
    return policy.admission.caution.factor(pace, 1.0, 3)


def test_promises_broken_at_one_moment_make_it_more_cautious_once():
    policy = Goodput()
    watch = full(9, 13, 17, policy=lambda: policy)
    before = caution(policy)
    said = watch.handle(BatchDone(1), 12 * MS)
    evicted = len([finish for finish in of(Finish, said) if finish.outcome is Outcome.INFEASIBLE])
    assert evicted > 1
    assert caution(policy) == pytest.approx(before * BROKEN, rel=0.01)
    watch.close()


def test_a_batch_with_room_for_what_was_refused_makes_it_bolder():
    policy = Goodput()
    scheduler = Scheduler(policy)
    scheduler.handle(TargetUp(target("cpu:0", offer(base_ms=6), slots=1)), 0)
    scheduler.handle(Submitted((request(1, 90),)), 0)
    scheduler.handle(Submitted((request(2, 40),)), 0)
    said = scheduler.handle(Submitted(tuple(request(i, 24) for i in range(3, 15))), 0)
    refused = len(outcomes(said))
    assert 4 < refused < 12
    scheduler.handle(BatchDone(1), 7 * MS)
    assert caution(policy) <= MISSED


def test_a_target_that_comes_counts_before_anything_else_does():
    """A price of its time was asked for: the default ended with a KeyError, and was replaced."""
    core = Scheduler(policy := Goodput())
    core.handle(TargetUp(target("cpu:0", slots=1)), 0)
    for number in (1, 2):  # the other one waits
        core.handle(Submitted((request(number, 100),)), 0)
    core.handle(TargetUp(target("gpu:0", slots=1)), 1 * MS)
    assert set(policy.admission.pace(M).parts()) == {"cpu:0", "gpu:0"}


@pytest.mark.no_cover
def test_classes_that_are_all_refused_take_no_more_memory_for_ever():
    core = Scheduler(policy := Goodput())
    core.handle(TargetUp(target()), 0)
    for number in range(3_000):
        kind = RequestClass("m", None, ((number,),))
        core.handle(Submitted((request(number + 1, 1, kind),)), 0)
    assert not core.queues
    assert len(policy.admission._paces) < 500
    assert len(policy._outlook._ones) < 500


def factor_after(pause_ms: float, refused: int = 1) -> float:
    """By what the factor has changed after a pause of the only target, which is faster than told.

    What was admitted takes 1 ms each, not 4 as expected.
    """
    policy = Goodput()
    watch = full(9, 13, policy=lambda: policy)
    for request_id in range(100, 100 + refused):
        said = submit(watch, request(request_id, 15.5))
        assert outcomes(said) == {request_id: Outcome.INFEASIBLE}
    pace = policy.admission.pace(RequestClass("m"))
    before = policy.admission.caution.factor(pace, 1.0, 3)
    for run_id in (1, 2, 3):
        watch.handle(BatchDone(run_id), run_id * MS)
    submit(watch, request(200, 90), at_ms=3 + pause_ms)
    return policy.admission.caution.factor(pace, 1.0, 3) / before


@pytest.mark.parametrize(("refused", "pause_ms", "could"), [(1, 5, 1), (3, 5, 1), (3, 20, 3)])
def test_a_target_that_idles_while_refused_requests_could_be_in_time_makes_less_cautious(
    refused, pause_ms, could
):
    assert factor_after(pause_ms, refused) == pytest.approx(IDLED**could, rel=0.01)


def test_a_pause_too_short_for_what_was_refused_changes_nothing():
    assert factor_after(pause_ms=3) == pytest.approx(1.0, rel=0.01)


def test_refused_requests_are_forgotten_after_their_deadlines():
    """Each class that had some would cost time with every arrival, for ever."""
    policy = Goodput()
    watch = full(9, 13, policy=lambda: policy)
    kinds = [RequestClass("m", None, ((number,),)) for number in range(9)]
    for number, kind in enumerate(kinds):
        submit(watch, request(100 + number, 15.5, kind))
    assert set(policy.admission._refused) == set(kinds)
    for run_id in (1, 2, 3):
        watch.handle(BatchDone(run_id), 4 * run_id * MS)
    for number, at_ms in enumerate((16, 17)):
        submit(watch, request(200 + number, 90), at_ms=at_ms)
        watch.handle(BatchDone(4 + number), at_ms * MS + MS // 2)
    assert not policy.admission._refused
