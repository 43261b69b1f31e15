"""What is particular to each policy."""

from __future__ import annotations

from policies.edf import Edf
from policies.fcfs import Fcfs
from policies.goodput import Goodput
from scheduler.core.commands import Dispatch
from scheduler.core.events import BatchDone, TargetUp
from scheduler.core.requests import RequestClass
from tests.core.laws import MakePolicy, Watch
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


def test_fcfs_takes_another_class_when_the_oldest_can_not_be_in_time_here():
    watch = busy(Fcfs, offer("a", base_ms=50), offer("b"))
    watch.handle(TargetUp(target("gpu:0", offer("a"), slots=1)), 0)
    submit(watch, request(2, 40, A), request(3, 50, A), request(4, 40, B))
    assert next_batch(watch) == ("b", "v", (4,))


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
    submit(watch, request(2, 80, A), request(3, 80, A))
    assert next_batch(watch) == ("a", "v", (2,))
    watch = busy(Goodput, offer("b", base_ms=4, item_ms=0.1))
    submit(watch, request(2, 80, B), request(3, 80, B), request(4, 80, B))
    assert next_batch(watch) == ("b", "v", (2, 3))
