"""What every policy must do, whatever its rule; a policy of one's own passes this too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import DEFAULT, POLICIES, make_policy
from policies.edf import Edf
from replay.conformance import CHECKS, conformance
from replay.laws import Watch
from scheduler.core.commands import Dispatch
from scheduler.core.events import (
    BatchDone,
    PolicySwapped,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Decision, Place, View
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.world import MS, PROMPT, of, offer, outcomes, request, submit, target

pytestmark = pytest.mark.no_cover

each_policy = pytest.mark.parametrize("name", sorted(POLICIES))
each_prompt_policy = pytest.mark.parametrize("name", PROMPT)

TARGETS = (
    target("cpu:0", offer("a", spread=0.1), offer("b", item_ms=2, spread=0.1)),
    target("gpu:0", offer("a", "fp16", 1, 0.2, spread=0.1), slots=3),
    target("npu:0", offer("b", base_ms=0, item_ms=4, spread=0.1), offer("c"), slots=1),
)


@each_policy
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_policy_conforms(name, check):
    check(POLICIES[name])


class Sleepy:
    """Never decides anything."""

    def decide(self, view: View) -> Iterable[Decision]:
        return ()


class Careless:
    """Sends everything at once, in time or not."""

    def decide(self, view: View) -> Iterable[Decision]:
        for free in view.open_targets():
            for queue in list(view.queues.values()):
                if free.usable(queue.kind) and free.is_open(view.now_ns):
                    yield Place(free.spec.id, free.usable(queue.kind)[0], (queue.head(),), "go")


class Meddler(Edf):
    """Changes what it sees."""

    def decide(self, view: View) -> Iterator[Decision]:
        for decision in super().decide(view):
            yield decision
            next(iter(view.targets.values())).last_done_ns += 1


class Vandal:
    """Takes away what it sees."""

    def decide(self, view: View) -> Iterable[Decision]:
        view.targets.clear()  # type: ignore[attr-defined]
        return ()


class Broken:
    """Raises."""

    def decide(self, view: View) -> Iterable[Decision]:
        raise OSError("disk")


class Steep(Edf):
    """Takes it that every batch was measured at two sizes."""

    def decide(self, view: View) -> Iterator[Decision]:
        for known in view.targets.values():
            for offered in known.spec.offers:
                _smaller, _larger = sorted(offered.latency_ns)[-2:]
        yield from super().decide(view)


class Wrapper:
    """Does not say what the policy inside counts on."""

    def __init__(self) -> None:
        self.inner = Edf()

    def decide(self, view: View) -> Iterable[Decision]:
        return self.inner.decide(view)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Wrapper, "idles while .* wait; the policy has no attribute `quantile`, so 0.5 is "),
        (Careless, "would be done at .*; the policy has no attribute `quantile`"),
        (Steep, "not enough values to unpack"),
        (Sleepy, "4 \\(work conservation\\): cpu:0 idles while .* in time \\(\\d+ of model '[ab]'"),
        (Careless, "2 \\(no doomed work\\): .* would be done at"),
        (Meddler, "the policy changed the view"),
        (Vandal, "target 'cpu:0' is not known; did the policy change the view, which is read-only"),
        (Broken, "OSError: disk"),
    ],
)
def test_what_does_not_conform_is_told(make, told):
    problems = [verdict.problem for verdict in conformance(make) if verdict.problem]
    assert any(re.search(told, problem) for problem in problems), problems


# -- corners


@each_policy
def test_without_targets_it_says_so(name):
    watch = Watch(POLICIES[name])
    assert outcomes(submit(watch, request(1, 50))) == {1: Outcome.UNAVAILABLE}
    watch.close()


@each_prompt_policy
def test_nothing_is_sent_to_a_target_that_is_down(name):
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target()), 0)
    watch.handle(TargetDown("cpu:0", "restarts", 10 * MS), 0)
    assert of(Dispatch, submit(watch, request(1, 50))) == []
    assert of(Dispatch, watch.handle(TargetUp(target()), 10 * MS)) != []
    watch.close()


@each_policy
def test_what_only_a_returning_target_can_not_make_in_time_is_told_at_once(name):
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target()), 0)
    watch.handle(TargetDown("cpu:0", "restarts", 10 * MS), 0)
    assert outcomes(submit(watch, request(1, 11))) == {1: Outcome.INFEASIBLE}
    watch.close()


@each_prompt_policy
def test_each_class_goes_where_it_can_run(name):
    watch = Watch(POLICIES[name])
    for spec in TARGETS:
        watch.handle(TargetUp(spec), 0)
    wanted = [request(i, 90, kind) for i, kind in enumerate(map(RequestClass, "abcab"), 1)]
    for sent in of(Dispatch, submit(watch, *wanted)):
        assert {"cpu:0": "ab", "gpu:0": "a", "npu:0": "bc"}[sent.target_id].count(sent.model)
    assert len(watch.runs) >= 2
    watch.close()


@each_policy
def test_a_hopeless_request_is_infeasible_and_tells_what_would_do(name):
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target()), 0)
    submit(watch, request(1, 2))
    finish = watch.finished[1]
    assert finish.outcome is Outcome.INFEASIBLE
    assert finish.detail["stage"] == "refused"
    assert finish.detail["earliest_budget_ms"] == {"cpu:0": 3.0}
    watch.close()


@each_policy
def test_a_hopeless_request_runs_if_late_is_welcome(name):
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target()), 0)
    assert len(of(Dispatch, submit(watch, request(1, 2, accept_late=True)))) == 1
    assert outcomes(watch.handle(BatchDone(1), 3 * MS)) == {1: Outcome.LATE}
    watch.close()


@each_policy
@pytest.mark.parametrize("deadline_ms", [2.6, 2.99, 3.05, 3.3])
def test_a_request_that_may_be_late_is_not_left_out_for_being_nearly_in_time(name, deadline_ms):
    """Late at the promised quantile, in time at the median: neither must leave it waiting."""
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target("cpu:0", offer(spread=0.2))), 0)
    said = submit(watch, request(1, deadline_ms, accept_late=True))
    assert len(of(Dispatch, said)) == 1
    watch.close()


@pytest.mark.parametrize("name", sorted(set(PROMPT) - {"fcfs"}))
def test_the_more_urgent_goes_first(name):
    watch = Watch(POLICIES[name])
    watch.handle(TargetUp(target("cpu:0", offer("a"), offer("b"), offer("c"), slots=1)), 0)
    submit(watch, request(1, 200, RequestClass("a")))
    submit(
        watch,
        request(2, 190, RequestClass("b")),
        request(3, 150, RequestClass("c")),
        request(4, 199, RequestClass("a"), priority=0),
    )
    order = []
    for now_ms in (4, 8, 12, 16):
        watch.handle(BatchDone(max(watch.runs)), now_ms * MS)
    order = [run.request_ids for run in watch.runs.values()]
    assert order == [(1,), (4,), (3,), (2,)]
    watch.close()


@each_policy
@settings(max_examples=30, deadline=None)
@given(budgets=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_swap_takes_over_what_is_queued(name, budgets):
    watch = Watch(POLICIES[DEFAULT])
    watch.handle(TargetUp(target(slots=1)), 0)
    submit(watch, *(request(i, budget) for i, budget in enumerate(budgets, 1)))
    watch.swap(POLICIES[name], 0)
    watch.handle(Woken(), 1 * MS)
    watch.close()


def test_policies_are_made_by_name():
    assert type(make_policy("edf", quantile=0.9)) is POLICIES["edf"]
    with pytest.raises(
        ValueError, match=r"policy 'lifo' is not known; there are .*edf, .*fcfs, goodp"
    ):
        make_policy("lifo")
    with pytest.raises(ValueError, match=r"policy 'edf' has no option 'depth'; it has quantile"):
        make_policy("edf", depth=3)
    with pytest.raises(ValueError, match=r"no option 'quantil' \(did you mean 'quantile'\?\)"):
        make_policy("goodput", quantil=0.9)
    with pytest.raises(ValueError, match=r"policy 'edf': with quantile='high' it raised TypeError"):
        make_policy("edf", quantile="high")


@each_policy
@pytest.mark.parametrize("quantile", [0, 1, 95])
def test_a_quantile_is_a_share(name, quantile):
    with pytest.raises(ValueError, match="quantile must be between 0 and 1"):
        make_policy(name, quantile=quantile)


def test_a_policy_that_was_swapped_out_is_not_asked_again():
    class Untouchable:
        def decide(self, view: View) -> Iterable[Decision]:
            raise AssertionError("asked")

    scheduler = Scheduler(Untouchable())
    scheduler.handle(TargetUp(target()), 0)
    scheduler.handle(PolicySwapped("edf", POLICIES["edf"]()), 0)
    assert len(of(Dispatch, scheduler.handle(Submitted((request(1, 50),)), 0))) == 1
