from __future__ import annotations

from dataclasses import replace

import pytest

from policies import POLICIES
from replay.laws import Watch
from scheduler.core.commands import CancelRun, Dispatch, Finish, WakeAt
from scheduler.core.errors import InvariantError
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, PROMPT, of, offer, outcomes, request, submit, target

# -- how requests end


def test_a_request_is_run_and_answered(each_box):
    each_box.handle(TargetUp(target()), 0)
    (sent,) = of(Dispatch, submit(each_box, request(1, 50)))
    assert (sent.target_id, sent.model, sent.variant, sent.request_ids) == ("cpu:0", "m", "v", (1,))
    assert sent.latest_start_ns == 47 * MS
    done = each_box.handle(BatchDone(sent.run_id), 3 * MS)
    assert of(Finish, done) == [Finish(1, Outcome.COMPLETED, "in time", sent.run_id, 0)]


def test_exactly_at_the_deadline_is_in_time_and_a_nanosecond_later_is_not(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 3))
    assert outcomes(box.handle(BatchDone(1), 3 * MS)) == {1: Outcome.COMPLETED}
    submit(box, request(2, 10), at_ms=3)
    assert outcomes(box.handle(Woken(), 10 * MS)) == {}
    late = box.handle(Woken(), 10 * MS + 1)
    assert outcomes(late) == {2: Outcome.EXPIRED}
    assert of(CancelRun, late) == [CancelRun(2)]


def test_expiry_is_said_when_it_was_asked_to_be_woken_for_it(box):
    box.handle(TargetUp(target(slots=1)), 0)
    said = submit(box, request(1, 100), request(2, 10, accept_late=True))
    (wake,) = of(WakeAt, said)
    assert outcomes(box.handle(Woken(), wake.at_ns)) == {} or wake.at_ns == 10 * MS + 1


def test_a_late_result_is_for_those_who_asked(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 8, accept_late=True), request(2, 9))
    said = box.handle(BatchDone(1), 9 * MS + 1)
    assert outcomes(said) == {1: Outcome.LATE, 2: Outcome.EXPIRED}


@pytest.mark.parametrize("ended", [BatchDone(1), BatchFailed(1, "broken")])
def test_a_run_that_has_just_ended_is_not_cancelled(box, ended):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 8))
    said = box.handle(ended, 9 * MS)
    assert outcomes(said) == {1: Outcome.EXPIRED}
    assert of(CancelRun, said) == []


def test_a_late_request_whose_run_fails_after_the_deadline_expires(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 8, accept_late=True))
    assert outcomes(box.handle(Woken(), 9 * MS)) == {}
    assert outcomes(box.handle(BatchFailed(1, "broken"), 10 * MS)) == {1: Outcome.EXPIRED}


def test_cancelling_ends_it_wherever_it_is(box):
    box.handle(TargetUp(target(slots=1)), 0)
    submit(box, request(1, 50))
    submit(box, request(2, 60), at_ms=1)
    assert outcomes(box.handle(Cancelled(2), 1 * MS)) == {2: Outcome.CANCELLED}
    running = box.handle(Cancelled(1), 2 * MS)
    assert outcomes(running) == {1: Outcome.CANCELLED}
    assert of(CancelRun, running) == [CancelRun(1)]
    assert of(Finish, box.handle(Cancelled(1), 2 * MS)) == []


def test_limits_are_said_as_overload(box):
    box = Watch(POLICIES["edf"], Limits(requests=2, bytes=100))
    box.handle(TargetUp(target(slots=1)), 0)
    said = submit(box, request(1, 50, size_bytes=90), request(2, 50, size_bytes=20))
    assert outcomes(said) == {2: Outcome.OVERLOADED}
    said = submit(box, request(3, 50), request(4, 50))
    assert outcomes(said) == {4: Outcome.OVERLOADED}
    box.close()


def test_no_target_at_all_is_unavailable_and_no_time_left_is_expired(box):
    said = submit(box, request(1, 50), request(2, 0))
    assert outcomes(said) == {1: Outcome.UNAVAILABLE, 2: Outcome.EXPIRED}
    assert of(Finish, said)[0].reason == "no target has model 'm' ready"


# -- targets that come and go


def test_a_lost_target_gives_its_requests_to_another(box):
    box.handle(TargetUp(target("a")), 0)
    submit(box, request(1, 50))
    box.handle(TargetUp(target("b")), 1 * MS)
    (again,) = of(Dispatch, box.handle(TargetDown("a", "crashed"), 2 * MS))
    assert (again.target_id, again.request_ids) == ("b", (1,))


def test_requests_wait_for_a_target_that_returns_before_their_deadline(box):
    box.handle(TargetUp(target()), 0)
    box.handle(TargetDown("cpu:0", "restarts", 20 * MS), 0)
    said = submit(box, request(1, 50), request(2, 20))
    assert outcomes(said) == {2: Outcome.UNAVAILABLE}
    assert "runs on cpu:0, which is down" in of(Finish, said)[0].reason
    (sent,) = of(Dispatch, box.handle(TargetUp(target()), 20 * MS))
    assert sent.request_ids == (1,)


def test_the_longer_a_target_is_overdue_the_later_it_is_expected(box):
    box.handle(TargetUp(target()), 0)
    box.handle(TargetDown("cpu:0", "restarts", 20 * MS), 0)
    said = submit(box, request(1, 140), request(2, 170), at_ms=80)
    assert outcomes(said) == {1: Outcome.UNAVAILABLE}
    (sent,) = of(Dispatch, box.handle(TargetUp(target()), 90 * MS))
    assert sent.request_ids == (2,)


def test_a_target_that_does_not_return_makes_requests_unavailable_at_once(box):
    box.handle(TargetUp(target(slots=1)), 0)
    submit(box, request(1, 50))
    submit(box, request(2, 50))
    said = box.handle(TargetDown("cpu:0", "unplugged"), 1 * MS)
    assert outcomes(said) == {1: Outcome.UNAVAILABLE, 2: Outcome.UNAVAILABLE}
    assert of(Finish, said)[0].reason.endswith("which is down: unplugged")


@pytest.mark.parametrize("was_down", [False, True])
def test_a_target_that_is_removed_is_forgotten(box, was_down):
    box.handle(TargetUp(target("a")), 0)
    box.handle(TargetUp(target("b", slots=1)), 0)
    submit(box, request(1, 50))
    submit(box, request(2, 50))
    if was_down:
        box.handle(TargetDown("b", "the link broke", 20 * MS, blameless=True), 1 * MS)
    box.handle(TargetDown("a", "unplugged", blameless=True, removed=True), 1 * MS)
    said = box.handle(TargetDown("b", "unplugged", blameless=True, removed=True), 2 * MS)
    assert outcomes(said) == {1: Outcome.UNAVAILABLE, 2: Outcome.UNAVAILABLE}
    assert of(Finish, said)[0].reason == "no target has model 'm' ready: unplugged"
    assert box.scheduler.targets == {}
    box.handle(TargetUp(target("b")), 3 * MS)
    (sent,) = of(Dispatch, submit(box, request(3, 50), at_ms=3))
    assert sent.target_id == "b"


def test_a_replaced_target_loses_its_runs_but_not_their_requests(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 50))
    (again,) = of(Dispatch, box.handle(TargetUp(target()), 1 * MS))
    assert again.request_ids == (1,)
    with pytest.raises(InvariantError, match="run 1 is not known"):
        box.handle(BatchDone(1), 2 * MS)


def test_what_only_the_former_target_could_run_waits_for_further_reports(box):
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("n"))), 0)
    box.handle(TargetDown("cpu:0", "restarts", 5 * MS), 0)
    submit(box, request(1, 50, RequestClass("n")))
    assert box.handle(TargetUp(target("cpu:0", offer("m")), (("n", "v"),)), 5 * MS) == []
    (sent,) = of(Dispatch, box.handle(TargetReport("cpu:0", (offer("n"),)), 6 * MS))
    assert (sent.model, sent.request_ids) == ("n", (1,))


def test_what_only_the_former_target_could_run_ends_if_the_new_one_will_not(box):
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("n"))), 0)
    box.handle(TargetDown("cpu:0", "restarts", 5 * MS), 0)
    submit(box, request(1, 50, RequestClass("n")), request(2, 50))
    commands = box.handle(TargetUp(target("cpu:0", offer("m"))), 5 * MS)
    (said,) = of(Finish, commands)
    assert (said.request_id, said.outcome) == (1, Outcome.UNAVAILABLE)
    assert said.reason == "no target has model 'n' ready: cpu:0 came back without it"
    assert [sent.request_ids for sent in of(Dispatch, commands)] == [(2,)]


def test_until_a_target_has_told_all_what_it_has_yet_to_report_is_expected_of_it(box):
    n = RequestClass("n")
    box.handle(TargetUp(target("cpu:0", offer("m")), (("n", "v"), ("o", "v"))), 5 * MS)
    assert (
        outcomes(submit(box, request(1, 90, n), request(2, 90, RequestClass("o")), at_ms=6)) == {}
    )
    # 30 ms after it came back, in 30 ms more at the earliest.
    assert outcomes(submit(box, request(3, 60, n), at_ms=35)) == {3: Outcome.UNAVAILABLE}
    (sent,) = of(Dispatch, box.handle(TargetReport("cpu:0", (offer("n"),)), 36 * MS))
    assert sent.request_ids == (1,)
    (said,) = of(Finish, box.handle(TargetReport("cpu:0", ()), 37 * MS))
    assert (said.request_id, said.outcome) == (2, Outcome.UNAVAILABLE)
    assert said.reason == "no target has model 'o' ready: cpu:0 has reported all it has"
    assert outcomes(submit(box, request(4, 90, RequestClass("o")), at_ms=38)) == {
        4: Outcome.UNAVAILABLE
    }


def test_what_only_withdrawn_variants_could_serve_ends_at_once(box):
    n, fp32 = RequestClass("n"), RequestClass("m", variant="fp32")
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("m", "fp32"), offer("n"), slots=1)), 0)
    submit(box, request(1, 90, fp32))
    submit(box, request(2, 90), request(3, 90, n), request(4, 90, fp32))
    gone = (("m", "fp32"), ("n", "v"), ("n", "unknown"), ("o", "v"))
    said = of(Finish, box.handle(TargetWithdrew("cpu:0", gone, "its files were replaced"), 1 * MS))
    assert {finish.request_id: finish.reason for finish in said} == {
        3: "no target has model 'n' ready: its files were replaced",
        4: "no target has model 'm' variant 'fp32' ready: its files were replaced",
    }
    assert {finish.outcome for finish in said} == {Outcome.UNAVAILABLE}
    # The run of a withdrawn variant goes on.
    commands = box.handle(BatchDone(1), 3 * MS)
    assert outcomes(commands) == {1: Outcome.COMPLETED}
    (sent,) = of(Dispatch, commands)
    assert (sent.variant, sent.request_ids) == ("v", (2,))
    assert outcomes(submit(box, request(5, 90, n), at_ms=4)) == {5: Outcome.UNAVAILABLE}


@pytest.mark.parametrize("started", [False, True])
def test_what_ran_on_a_withdrawn_variant_ends_if_it_comes_back_and_nothing_else_has_it(
    box, started
):
    fp32 = RequestClass("m", variant="fp32")
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("m", "fp32"))), 0)
    submit(box, request(1, 90, fp32), request(2, 90, fp32))
    box.handle(TargetWithdrew("cpu:0", (("m", "fp32"),), "its files were replaced"), 1 * MS)
    commands = box.handle(BatchFailed(1, "it is not served", started), 2 * MS)
    said = of(Finish, commands)
    assert [(finish.request_id, finish.outcome) for finish in said] == [
        (1, Outcome.UNAVAILABLE),
        (2, Outcome.UNAVAILABLE),
    ]
    assert said[0].reason == "no target has model 'm' variant 'fp32' ready: it is not served"


def test_what_ran_on_a_withdrawn_variant_ends_if_its_target_is_lost(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90))
    box.handle(TargetWithdrew("cpu:0", (("m", "v"),), "its files were replaced"), 1 * MS)
    lost = box.handle(TargetDown("cpu:0", "its process ended", 5 * MS), 2 * MS)
    assert outcomes(lost) == {1: Outcome.UNAVAILABLE}


def test_what_ran_on_a_withdrawn_variant_goes_on_if_its_target_returns_with_it(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90))
    box.handle(TargetWithdrew("cpu:0", (("m", "v"),), "its files were replaced"), 1 * MS)
    (again,) = of(Dispatch, box.handle(TargetUp(target()), 2 * MS))
    assert again.request_ids == (1,)


def test_a_withdrawn_variant_that_is_offered_again_is_learned_anew(box):
    box.handle(TargetUp(target()), 0)
    for number in range(1, 9):
        submit(box, request(number, 90 * number), at_ms=20 * number)
        box.handle(BatchDone(number), (20 * number + 15) * MS)
    cpu = box.scheduler.targets["cpu:0"]
    (kept,) = cpu.offers["m"]
    assert cpu.curve(kept).predict(1, 0.95) > 3 * MS
    box.handle(TargetWithdrew("cpu:0", (("m", "v"),), "removed"), 200 * MS)
    assert cpu.offers == {}
    box.handle(TargetReport("cpu:0", (kept,)), 201 * MS)
    assert cpu.curve(kept).predict(1, 0.95) == 3 * MS


def test_what_another_target_has_waits_for_it_when_one_withdraws_it(box):
    box.handle(TargetUp(target("cpu:0", offer("m"), slots=1)), 0)
    box.handle(TargetUp(target("gpu:0", offer("m"), slots=1)), 0)
    box.handle(TargetDown("gpu:0", "restarts", 5 * MS), 0)
    submit(box, request(1, 90))
    submit(box, request(2, 90))
    assert of(Finish, box.handle(TargetWithdrew("cpu:0", (("m", "v"),), "removed"), 1 * MS)) == []
    (sent,) = of(Dispatch, box.handle(TargetUp(target("gpu:0", offer("m"), slots=1)), 5 * MS))
    assert sent.request_ids == (2,)


def test_what_is_expected_of_a_target_stays_so_when_it_goes_again(box):
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("n"))), 0)
    box.handle(TargetDown("cpu:0", "restarts", 5 * MS), 0)
    box.handle(TargetUp(target("cpu:0", offer("m")), (("n", "v"),)), 5 * MS)
    submit(box, request(1, 90, RequestClass("n")), at_ms=6)
    assert outcomes(box.handle(TargetDown("cpu:0", "restarts", 5 * MS), 7 * MS)) == {}
    assert outcomes(submit(box, request(2, 90, RequestClass("n")), at_ms=8)) == {}
    box.handle(TargetUp(target("cpu:0", offer("m")), (("n", "v"),)), 12 * MS)
    (sent,) = of(Dispatch, box.handle(TargetReport("cpu:0", (offer("n"),)), 13 * MS))
    assert sent.request_ids[0] == 1
    assert outcomes(box.handle(TargetDown("cpu:0", "unplugged"), 14 * MS)) != {}


def test_what_waits_for_reports_of_one_target_does_not_end_when_another_is_lost(box):
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("n"))), 0)
    box.handle(TargetUp(target("gpu:0", offer("m"))), 0)
    box.handle(TargetDown("cpu:0", "restarts", 5 * MS), 0)
    submit(box, request(1, 50, RequestClass("n")))
    box.handle(TargetUp(target("cpu:0", offer("m")), (("n", "v"),)), 5 * MS)
    assert outcomes(box.handle(TargetDown("gpu:0", "crashed"), 5 * MS)) == {}
    (sent,) = of(Dispatch, box.handle(TargetReport("cpu:0", (offer("n"),)), 6 * MS))
    assert sent.request_ids == (1,)


def test_only_the_oldest_run_of_a_lost_target_had_started(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90))
    submit(box, request(2, 90), at_ms=2)
    assert len(box.scheduler.runs) == 2
    box.handle(TargetDown("cpu:0", "crashed", 5 * MS), 3 * MS)
    records = box.scheduler.ledger.records
    assert {i: record.attempts for i, record in records.items()} == {1: 1, 2: 0}
    assert records[1].request.kind.alone == 1
    assert records[2].request.kind.alone is None


def test_a_broken_link_costs_no_attempt_and_splits_no_batch(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90), request(2, 90))
    box.handle(TargetDown("cpu:0", "the link broke", 5 * MS, blameless=True), 3 * MS)
    (sent,) = of(Dispatch, box.handle(TargetUp(target()), 8 * MS))
    assert sent.request_ids == (1, 2)
    assert {record.attempts for record in box.scheduler.ledger.records.values()} == {1}


def test_a_closed_target_is_not_used_until_it_opens_and_then_at_once(box):
    box.handle(TargetUp(target()), 0)
    box.handle(TargetChanged(target(), 20 * MS), 0)
    said = submit(box, request(1, 90), request(2, 20))
    assert outcomes(said) == {2: Outcome.UNAVAILABLE}
    assert of(Finish, said)[0].reason == "model 'm' runs on cpu:0, which takes no batch in time"
    assert of(WakeAt, said)[-1].at_ns == 20 * MS
    (sent,) = of(Dispatch, box.handle(Woken(), 20 * MS))
    assert sent.request_ids == (1,)


def test_what_waits_for_a_target_that_closes_for_longer_than_it_can_wait_ends_at_once(box):
    box.handle(TargetUp(target(slots=1)), 0)
    submit(box, request(1, 90))
    submit(box, request(2, 60), request(3, 200), at_ms=1)
    said = of(Finish, box.handle(TargetChanged(target(slots=1), 100 * MS), 2 * MS))
    assert [(each.request_id, each.outcome) for each in said] == [(2, Outcome.UNAVAILABLE)]
    assert said[0].reason.endswith("takes no batch in time: closed for 100 ms")


def test_a_target_that_changes_keeps_its_runs_and_what_was_learned(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 900))
    box.handle(BatchDone(1), 800 * MS)
    submit(box, request(2, 2_000), at_ms=800)
    box.handle(TargetChanged(replace(target(), slots=1, cost_per_request=2.0)), 801 * MS)
    changed = box.scheduler.targets["cpu:0"]
    assert (list(changed.runs), changed.spec.slots) == ([2], 1)
    assert changed.curve(offer()).predict(1, 0.99) == 800 * MS


def test_what_waits_for_a_target_that_turns_out_to_take_nothing_like_it_ends_at_once(box):
    box.handle(TargetUp(target()), 0)
    box.handle(TargetUp(target("gpu:0", offer("other"))), 0)
    others = RequestClass("other", None, ())
    submit(
        box,
        *[request(i, 90) for i in range(1, 10)],
        *[request(i, 90, others) for i in range(10, 19)],
    )
    queued = [record.request for record in box.scheduler.ledger.queued()]
    waiting = {each.id for each in queued if each.kind.model == "m"}
    assert waiting
    said = box.handle(TargetChanged(replace(target(), too_large=(("m", ()),))), 1 * MS)
    assert outcomes(said) == dict.fromkeys(waiting, Outcome.UNAVAILABLE)
    assert "refused by cpu:0: like an earlier request" in of(Finish, said)[0].reason


def test_what_is_too_large_for_every_target_ends_and_what_is_not_goes_elsewhere(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90), request(2, 90))
    box.handle(TargetChanged(replace(target(), too_large=(("m", ()),))), 1 * MS)
    said = box.handle(BatchFailed(1, "it is too much", started=False), 1 * MS)
    assert outcomes(said) == {1: Outcome.UNAVAILABLE, 2: Outcome.UNAVAILABLE}
    assert (
        "inputs this large or expensive for model 'm' are refused by cpu:0: it is too much"
        in of(Finish, said)[0].reason
    )
    assert outcomes(submit(box, request(3, 90), at_ms=2)) == {3: Outcome.UNAVAILABLE}
    box.handle(TargetUp(target("gpu:0")), 3 * MS)
    (sent,) = of(Dispatch, submit(box, request(4, 90), at_ms=3))
    assert sent.target_id == "gpu:0"


def test_a_refused_run_costs_no_attempt_and_keeps_company(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 90), request(2, 90))
    for run_id in range(1, 6):
        (sent,) = of(Dispatch, box.handle(BatchFailed(run_id, "busy", started=False), run_id * MS))
        assert sent.request_ids == (1, 2)


def test_the_shapes_of_one_model_that_wait_are_bounded_and_those_of_others_are_not():
    """Each is a queue of its own, and every decision looks at all of them."""
    box = Watch(POLICIES["edf"], Limits(classes=2))
    box.handle(TargetUp(target("cpu:0", offer("m"), offer("n"), slots=1)), 0)
    shapes = [RequestClass("m", None, ((length,),)) for length in range(4)]
    submit(box, request(1, 900, shapes[0]))  # runs
    said = submit(box, *(request(i, 900, shapes[i - 1]) for i in (2, 3, 4)))
    assert outcomes(said) == {4: Outcome.OVERLOADED}
    assert "inputs of 2 shapes wait for model 'm' already" in of(Finish, said)[0].reason
    others = request(5, 900, shapes[2]), request(6, 900, RequestClass("n", None, ((9,),)))
    assert outcomes(submit(box, *others)) == {}
    box.handle(Cancelled(2), MS)
    assert outcomes(submit(box, request(7, 900, shapes[3]), at_ms=1)) == {}
    box.close()


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_attempts_are_bounded(attempts):
    box = Watch(POLICIES["edf"], Limits(attempts=attempts))
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 900))
    for run_id in range(1, attempts):
        assert outcomes(box.handle(BatchFailed(run_id, "broken"), run_id * MS)) == {}
    said = box.handle(BatchFailed(attempts, "broken"), attempts * MS)
    assert outcomes(said) == {1: Outcome.FAILED}
    assert of(Finish, said)[0].reason == f"failed {attempts} times, last on cpu:0: broken"
    box.close()


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("policy", PROMPT)
def test_a_request_that_kills_its_worker_fails_alone(policy, attempts):
    """Its batch mates complete, whatever the limit: a shared run is nobody's last."""
    poison = 3
    box = Watch(POLICIES[policy], Limits(attempts=attempts))
    box.handle(TargetUp(target()), 0)
    now_ms = 0
    agenda = submit(box, *(request(i, 900) for i in range(1, 9)))
    assert of(Dispatch, agenda)[0].request_ids == tuple(range(1, 9))
    while box.scheduler.runs:
        now_ms += 5
        run = box.scheduler.runs[min(box.scheduler.runs)]
        if poison in run.request_ids:
            box.handle(TargetDown("cpu:0", "killed", 2 * MS), now_ms * MS)
            box.handle(TargetUp(target()), (now_ms + 2) * MS)
        else:
            box.handle(BatchDone(run.id), now_ms * MS)
    ended = {i: finish.outcome for i, finish in box.finished.items()}
    assert ended.pop(poison) is Outcome.FAILED
    assert set(ended.values()) == {Outcome.COMPLETED}
    sent = [run for run in box.runs.values() if poison in run.request_ids]
    assert len(sent) == max(2, attempts)
    box.close()


def test_a_bad_item_fails_alone(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 50), request(2, 50))
    said = box.handle(BatchDone(1, {2: "not an image"}), 5 * MS)
    assert outcomes(said) == {1: Outcome.COMPLETED, 2: Outcome.FAILED}


def test_what_was_learned_is_forgotten_when_nothing_confirms_it(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 900))
    box.handle(BatchDone(1), 800 * MS)
    curve = box.scheduler.targets["cpu:0"].curve(offer())
    assert curve.predict(1, 0.99) == 800 * MS
    submit(box, request(2, 9_000), at_ms=3_000)
    assert curve.predict(1, 0.99) == 3 * MS


# -- events that can't have happened


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (BatchDone(7), "run 7 is not known"),
        (BatchFailed(7, ""), "run 7 is not known"),
        (TargetDown("x", ""), "target 'x' is not known"),
        (TargetReport("x", ()), "target 'x' is not known"),
        (TargetWithdrew("x", (), ""), "target 'x' is not known"),
        (TargetChanged(target("x")), "target 'x' is not known"),
        (Submitted((request(9, 90), request(9, 90))), "request 9 came after 9"),
        (Submitted((request(1, 90),)), "request 1 came after 1"),
    ],
)
def test_an_event_that_contradicts_the_state_changes_nothing(box, event, complaint):
    """Not even what is due at its time is lost: it is said with the next event."""
    box.handle(TargetUp(target(slots=1)), 0)
    submit(box, request(1, 50))
    before = box.scheduler.now_ns, dict(box.scheduler.counts)
    with pytest.raises(InvariantError, match=complaint):
        box.handle(event, 60 * MS)
    assert (box.scheduler.now_ns, dict(box.scheduler.counts)) == before
    assert outcomes(box.handle(Woken(), 60 * MS)) == {1: Outcome.EXPIRED}


def test_time_does_not_go_back(box):
    box.handle(Woken(), 5)
    with pytest.raises(InvariantError, match="time went back from 5 to 4"):
        box.handle(Woken(), 4)


def test_a_broken_state_is_told(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 50))
    record = box.scheduler.ledger.records.pop(1)
    with pytest.raises(InvariantError, match="each pending request is queued or runs, once"):
        box.scheduler.validate()
    box.scheduler.ledger.records[1] = record


# -- waking up


def test_a_wake_up_that_never_came_is_asked_for_again(box):
    """The shell may handle another event first, at or after the time that was armed."""
    box.handle(TargetUp(target(slots=1)), 0)
    submit(box, request(1, 10), request(2, 90, accept_late=True))
    said = box.handle(Cancelled(99), 11 * MS)
    assert outcomes(said) == {1: Outcome.EXPIRED}
    assert box.scheduler.alarm.armed_ns is not None
    assert of(WakeAt, said) == [WakeAt(box.scheduler.alarm.armed_ns)]


def test_a_wake_up_that_comes_too_early_is_asked_for_again(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 10))
    assert box.handle(Woken(), 1 * MS) == [WakeAt(10 * MS + 1)]


def test_it_wakes_up_to_send_the_next_batch_ahead(box):
    box.handle(TargetUp(target()), 0)
    submit(box, request(1, 50))
    assert WakeAt(2 * MS) in submit(box, request(2, 50), at_ms=1)
    (sent,) = of(Dispatch, box.handle(Woken(), 2 * MS))
    assert sent.request_ids == (2,)


def test_what_runs_next_is_settled_late_where_an_end_is_uncertain(box):
    """So what comes meanwhile, and is more urgent, goes first."""
    box.handle(TargetUp(target("cpu:0", offer(base_ms=39, sizes=(1,), spread=0.2))), 0)
    submit(box, request(1, 500))
    assert of(Dispatch, submit(box, request(2, 400), at_ms=1)) == []
    assert of(Dispatch, submit(box, request(3, 300), at_ms=42)) == []
    (sent,) = of(Dispatch, box.handle(BatchDone(1), 45 * MS))
    assert sent.request_ids == (3,)


def test_expiries_of_what_has_ended_are_not_kept():
    """One request that stays would keep all that expire after it."""
    scheduler = Scheduler(POLICIES["edf"]())
    scheduler.handle(TargetUp(target(slots=1)), 0)
    scheduler.handle(Submitted((request(1, 10**5),)), 0)
    for i in range(2, 3_000):
        scheduler.handle(Submitted((request(i, 10**6),)), 0)
        scheduler.handle(Cancelled(i), 0)
    assert len(scheduler.ledger._expiries) < 1_500
    scheduler.validate()
