"""What is particular to each policy."""

from __future__ import annotations

from dataclasses import replace

from policies.cheapest import Cheapest
from policies.clockwork import Clockwork
from policies.deferred import Deferred
from policies.ect import Ect
from policies.edf import Edf
from policies.edf_admit import EdfAdmit
from policies.fcfs import Fcfs
from policies.goodput import Goodput
from policies.round_robin import RoundRobin
from policies.slackfit import SlackFit
from policies.window import Window
from replay.laws import MakePolicy, Watch
from scheduler.core.commands import Dispatch
from scheduler.core.events import BatchDone, TargetDown, TargetUp, Woken
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from tests.core.world import MS, of, offer, request, submit, target

A, B = RequestClass("a"), RequestClass("b")


def busy(policy: MakePolicy, *offers) -> Watch:
    """A box with one slot, taken by request 1 until 10 ms."""
    watch = Watch(policy)
    watch.handle(TargetUp(target("cpu:0", *offers, offer("x", base_ms=9, item_ms=1), slots=1)), 0)
    submit(watch, request(1, 99, RequestClass("x")))
    return watch


def next_batch(watch: Watch, at_ms: int = 10) -> tuple[str, str, tuple[int, ...]]:
    (sent,) = of(Dispatch, watch.handle(BatchDone(1), at_ms * MS))
    watch.close()
    return sent.model, sent.variant, sent.request_ids


def test_fcfs_takes_the_oldest_class_in_the_largest_batch_in_order_of_arrival():
    watch = busy(Fcfs, offer("a"), offer("b"))
    submit(watch, request(2, 90, A))
    submit(watch, request(3, 20, B), request(4, 80, A), request(5, 70, A))
    assert next_batch(watch) == ("a", "v", (2, 4))


def test_a_size_that_is_not_filled_is_used_if_no_smaller_batch_does_as_much_in_the_same_time():
    """Three in the time of four: 6 ms, when two take 4; then 5.9 ms."""
    for item_ms, together in ((1.0, 2), (0.95, 3)):
        for policy in (Fcfs, Edf, Window, Clockwork, Ect, Cheapest, Goodput):
            watch = busy(policy, offer("a", base_ms=2, item_ms=item_ms))
            submit(watch, *(request(number, 90, A) for number in (2, 3, 4)))
            _, _, sent = next_batch(watch)
            assert len(sent) == together, policy.__name__


def test_what_is_sent_far_takes_the_time_of_its_own_bytes_and_not_of_those_of_a_full_batch():
    """Three take 18.4 ms, 1 of them for the way there and 6 for their bytes; four would take 20.4.

    That tells whether they pay, of two that take 13.2, and whether they are in time at 38.7 ms.
    """
    there = offer("a", base_ms=6, item_ms=1.1), offer("x", base_ms=9)
    far = replace(target("far", *there, slots=1), remote=True, transfer_ns=(MS, 1.0))
    for due_ms in (99, 38.7):
        for policy in (Fcfs, Edf, Window, Clockwork, Ect, Cheapest, Goodput):
            watch = Watch(policy)
            watch.handle(TargetUp(far), 0)
            submit(watch, request(1, 99, RequestClass("x")))
            three = [request(number, due_ms, A, size_bytes=2_000_000) for number in (2, 3, 4)]
            submit(watch, *three)
            assert len(next_batch(watch, at_ms=20)[2]) == 3, (policy.__name__, due_ms)


def test_what_may_be_late_is_served_in_batches_that_pay():
    for item_ms, together in ((1.0, 2), (0.95, 3)):
        watch = busy(Edf, offer("a", base_ms=2, item_ms=item_ms))
        submit(watch, *(request(number, 12, A, accept_late=True) for number in (2, 3, 4)))
        assert len(next_batch(watch)[2]) == together


def test_fcfs_takes_another_class_when_the_oldest_can_not_be_in_time_here():
    watch = busy(Fcfs, offer("a", base_ms=50), offer("b"))
    watch.handle(TargetUp(target("gpu:0", offer("a"), slots=1)), 0)
    submit(watch, request(2, 40, A), request(3, 50, A), request(4, 40, B))
    assert next_batch(watch) == ("b", "v", (4,))


def test_fcfs_keeps_the_order_of_arrival_when_a_target_is_lost():
    watch = busy(Fcfs, offer("a", sizes=(1,)))
    watch.handle(TargetUp(target("far", offer("a", sizes=(1,)), slots=1)), 0)
    submit(watch, request(2, 90, A), request(3, 90, A))
    watch.handle(TargetDown("far", "the link broke", blameless=True), 5 * MS)
    assert next_batch(watch) == ("a", "v", (2,))


def test_edf_takes_the_most_urgent_in_the_largest_batch_that_keeps_it_in_time():
    watch = busy(Edf, offer("a"), offer("b"))
    submit(watch, request(2, 90, A), request(3, 14.5, B), *(request(i, 60, B) for i in range(4, 9)))
    assert next_batch(watch) == ("b", "v", (3, 4))


def test_edf_skips_to_a_faster_variant_for_what_the_preferred_one_would_make_late():
    watch = busy(Edf, offer("a", "fp32", base_ms=8), offer("a", "int8", base_ms=1, rank=1))
    submit(watch, request(2, 13, A))
    assert next_batch(watch) == ("a", "int8", (2,))


def test_goodput_gives_up_one_request_for_several():
    """After a delay, serving the urgent one would make a full batch of another class miss."""
    watch = busy(Goodput, offer("a", base_ms=5, item_ms=0), offer("b", base_ms=5, item_ms=0))
    submit(watch, request(2, 26, A), *(request(i, 26.5, B) for i in range(3, 7)))
    assert next_batch(watch, at_ms=17) == ("b", "v", (3, 4, 5, 6))


def test_goodput_changes_to_a_faster_variant_when_the_preferred_one_would_lose_something():
    slow, fast = offer("a", "fp32", base_ms=8), offer("a", "int8", base_ms=1, rank=1)
    watch = busy(Goodput, slow, fast, offer("b", base_ms=3, item_ms=0))
    submit(watch, request(2, 40, A))
    assert next_batch(watch) == ("a", "fp32", (2,))
    watch = busy(Goodput, slow, fast, offer("b", base_ms=3, item_ms=0))
    submit(watch, request(2, 17.5, B), request(3, 30, A))
    submit(watch, request(4, 19.9, A, priority=1, weight=3.0))
    assert next_batch(watch) == ("a", "int8", (4,))


def test_goodput_takes_a_larger_batch_only_if_it_is_worth_the_wait():
    watch = busy(Goodput, offer("a", base_ms=0, item_ms=2), offer("b", base_ms=4, item_ms=0.1))
    submit(watch, request(2, 30, A), request(3, 80, A))
    assert next_batch(watch) == ("a", "v", (2,))
    watch = busy(Goodput, offer("b", base_ms=4, item_ms=0.1))
    submit(watch, request(2, 80, B), request(3, 80, B), request(4, 80, B))
    assert next_batch(watch) == ("b", "v", (2, 3, 4))
    watch = busy(Goodput, offer("b", base_ms=1, item_ms=2))
    submit(watch, request(2, 80, B), request(3, 80, B), request(4, 80, B))
    assert next_batch(watch) == ("b", "v", (2, 3))


def test_of_idle_targets_the_fastest_goes_first():
    slow, fast = target("cpu:0", offer(base_ms=9), slots=1), target("gpu:0", slots=1)
    for policy in (Goodput, Edf, Window):
        watch = Watch(policy)
        for spec in (slow, fast):
            watch.handle(TargetUp(spec), 0)
        for request_id, target_id in ((1, "gpu:0"), (2, "cpu:0")):
            (run,) = of(Dispatch, submit(watch, request(request_id, 90)))
            assert run.target_id == target_id
        watch.close()


def test_of_idle_targets_what_is_paid_for_comes_last():
    slow = target("cpu:0", offer(base_ms=9), slots=1)
    cloud = replace(target("cloud:eu", slots=1), cost_per_request=1e-5)
    for policy in (Goodput, Edf, Window):
        watch = Watch(policy)
        for spec in (cloud, slow):
            watch.handle(TargetUp(spec), 0)
        (run,) = of(Dispatch, submit(watch, request(1, 90)))
        assert run.target_id == "cpu:0"
        watch.close()


def test_goodput_pays_in_the_moment_in_which_it_gives_something_up():
    """Until then what waits is left to what costs nothing, where it would be in time."""
    a, b = RequestClass("a"), RequestClass("b")
    watch = Watch(Goodput)
    for spec in (
        target("gpu:0", offer("a", base_ms=2, item_ms=0, sizes=(1,)), slots=1),
        target("cpu:0", long := offer("b", base_ms=9, item_ms=0, sizes=(1,)), slots=1),
        replace(target("cloud:eu", long, slots=1), cost_per_request=1e-5),
    ):
        watch.handle(TargetUp(spec), 0)
    (first,) = of(Dispatch, submit(watch, request(1, 50, a)))
    assert of(Dispatch, submit(watch, request(2, 50, b)))
    assert not of(Dispatch, submit(watch, request(3, 20, b), request(4, 5, a)))
    submit(watch, request(5, 4, a), at_ms=1)
    done = watch.handle(BatchDone(first.run_id), 2 * MS)
    assert [(each.target_id, each.request_ids) for each in of(Dispatch, done)] == [
        ("gpu:0", (5,)),
        ("cloud:eu", (3,)),
    ]
    watch.close()


def test_goodput_has_slow_devices_take_of_what_much_waits():
    """Alone the device takes the most urgent; beside a faster one it leaves that to it.

    One that is paid for makes no slow device of it.
    """
    offers = offer("a", base_ms=5, item_ms=1), offer("b", base_ms=5, item_ms=1, sizes=(1,))
    halves = offer("a", base_ms=2.5, item_ms=0.5), offer("b", base_ms=2.5, item_ms=0.5, sizes=(1,))
    fast = target("gpu:0", *halves, slots=1)
    paid = replace(fast, cost_per_request=1e-5)
    for fleet, chosen in ((), "a"), ((fast,), "b"), ((paid,), "a"):
        watch = busy(Goodput, *offers)
        for spec in fleet:
            watch.handle(TargetUp(spec), 0)
        if fast in fleet:
            submit(watch, request(2, 99, A))  # keeps it busy
        submit(watch, request(3, 25, A), *(request(i, 80, B) for i in range(10, 16)))
        assert next_batch(watch)[0] == chosen


def test_deferred_waits_until_the_last_moment_of_a_larger_batch():
    watch = Watch(Deferred)
    watch.handle(TargetUp(target("cpu:0", offer("a"))), 0)
    assert of(Dispatch, submit(watch, request(1, 50, A))) == []
    assert watch.scheduler.alarm.armed_ns == 46 * MS
    (sent,) = of(Dispatch, submit(watch, *(request(i, 60, A) for i in range(2, 9)), at_ms=5))
    assert len(sent.request_ids) == 8
    watch.close()


def test_deferred_goes_as_it_is_when_waiting_is_over():
    watch = Watch(Deferred)
    watch.handle(TargetUp(target("cpu:0", offer("a"))), 0)
    submit(watch, request(1, 50, A))
    (sent,) = of(Dispatch, watch.handle(Woken(), 46 * MS))
    assert sent.request_ids == (1,)
    watch.close()


def test_deferred_lets_what_may_wait_wait_though_something_less_important_goes():
    watch = Watch(Deferred)
    watch.handle(TargetUp(target("cpu:0", offer("a"), offer("b", sizes=(1,)))), 0)
    assert of(Dispatch, submit(watch, request(1, 500, A, priority=0))) == []
    (sent,) = of(Dispatch, submit(watch, request(2, 500, B, priority=5), at_ms=1))
    assert sent.request_ids == (2,)
    assert [waiting.id for waiting in watch.scheduler.queues[A]] == [1]
    watch.close()


def test_clockwork_takes_what_must_start_soonest():
    watch = busy(Clockwork, offer("a"), offer("b", base_ms=30))
    submit(watch, request(2, 50, A), request(3, 55, B))
    assert next_batch(watch) == ("b", "v", (3,))


def test_slackfit_gives_up_accuracy_when_slack_is_short():
    exact = replace(offer("a", "fp32", base_ms=8), accuracy=0.99)
    quick = replace(offer("a", "int8", base_ms=1), accuracy=0.9)
    watch = busy(SlackFit, quick, exact)
    submit(watch, request(2, 40, A))
    assert next_batch(watch) == ("a", "fp32", (2,))
    watch = busy(SlackFit, quick, exact)
    submit(watch, request(2, 13, A))
    assert next_batch(watch) == ("a", "int8", (2,))


def test_window_gives_up_heads_for_a_full_batch():
    watch = busy(Window, offer("a"))
    submit(watch, request(2, 18, A), *(request(i, 40, A) for i in range(3, 11)))
    said = watch.handle(BatchDone(1), 12 * MS)
    assert [len(run.request_ids) for run in of(Dispatch, said)] == [8]
    watch.close()
    assert watch.finished[2].outcome is Outcome.INFEASIBLE


def test_edf_admit_refuses_what_finds_no_place_behind_what_is_queued():
    watch = busy(EdfAdmit, offer("a", sizes=(1,)))
    submit(watch, *(request(i, 20, A) for i in range(2, 7)))
    refused = [i for i, finish in watch.finished.items() if finish.detail["stage"] == "refused"]
    assert refused == [5, 6]
    watch.close()


def test_round_robin_takes_turns_and_ect_takes_the_faster():
    def went(policy: MakePolicy) -> list[str]:
        watch = Watch(policy)
        watch.handle(TargetUp(target("cpu:0", offer("a", base_ms=8))), 0)
        watch.handle(TargetUp(target("gpu:0", offer("a", base_ms=1))), 0)
        said = [submit(watch, request(i, 90, A), at_ms=20 * i) for i in (1, 2)]
        watch.close()
        return [run.target_id for commands in said for run in of(Dispatch, commands)]

    assert went(RoundRobin) == ["cpu:0", "gpu:0"]
    assert went(Ect)[0] == "gpu:0"
