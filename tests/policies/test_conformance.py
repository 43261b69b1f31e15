"""What every policy must do, whatever its rule; a policy of one's own passes this too."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import DEFAULT, POLICIES, make_policy
from replay.simulator import Arrival, Ending, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Event,
    PolicySwapped,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Decision, Policy, View
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from tests.core.laws import Watch
from tests.core.world import MS, of, offer, outcomes, request, submit, target

each_policy = pytest.mark.parametrize("name", sorted(POLICIES))

TARGETS = (
    target("cpu:0", offer("a", spread=0.1), offer("b", item_ms=2, spread=0.1)),
    target("gpu:0", offer("a", "fp16", 1, 0.2, spread=0.1), slots=3),
    target("npu:0", offer("b", base_ms=0, item_ms=4, spread=0.1), offer("c"), slots=1),
)
KINDS = tuple(map(RequestClass, "aabc"))


def workload(seed: int, count: int = 400, gap_ms: float = 0.7) -> Iterator[Arrival]:
    chance = random.Random(seed)
    at_ms = 0.0
    for _ in range(count):
        at_ms += chance.expovariate(1 / gap_ms)
        yield Arrival(
            int(at_ms * MS),
            chance.choice(KINDS),
            chance.randrange(1, 60) * MS,
            priority=chance.choice((3, 3, 1, 5)),
            weight=chance.choice((1.0, 1.0, 3.0)),
            accept_late=chance.random() < 0.2,
        )


def true_times(seed: int) -> Any:
    """Service that is near what was measured, and sometimes far from it."""
    chance = random.Random(seed)

    def service_ns(dispatch: Dispatch) -> int:
        slow = 4 if chance.random() < 0.05 else chance.lognormvariate(0, 0.1)
        return int((2 + len(dispatch.request_ids)) * MS * slow)

    return service_ns


class Looked:
    """A policy that is looked at between its decisions: it must leave the view as it is."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def decide(self, view: View) -> Iterable[Decision]:
        decisions = iter(self.policy.decide(view))
        while True:
            before = photograph(view)
            decision = next(decisions, None)
            assert photograph(view) == before
            if decision is None:
                return
            yield decision


def photograph(view: View) -> str:
    """All that a view holds, apart from what is derived from it when it is asked."""
    queues = [(kind, list(queue)) for kind, queue in view.queues.items()]
    targets = [
        (
            *(t.spec, t.up, t.returns_ns, list(t.runs.values()), t.last_done_ns, t.offers),
            [
                curve.predict(1, 0.5)
                for offers in t.offers.values()
                for curve in map(t.curve, offers)
            ],
        )
        for t in view.targets.values()
    ]
    return repr((view.now_ns, view.arrivals, queues, targets))


@each_policy
@pytest.mark.parametrize("seed", [1, 2])
def test_all_ends_and_the_view_is_left_alone(name, seed):
    simulator = Simulator(Looked(POLICIES[name]()), TARGETS, true_times(seed))
    endings = list(simulator.run(workload(seed)))
    assert len(endings) == 400
    assert not any(simulator.scheduler.pending())
    simulator.scheduler.validate()


@each_policy
def test_two_instances_decide_alike(name):
    def played() -> list[Ending]:
        return list(Simulator(POLICIES[name](), TARGETS, true_times(3)).run(workload(3)))

    assert repr(played()) == repr(played())


@each_policy
def test_one_instance_serves_a_new_scheduler_as_a_fresh_one_does(name):
    """What a policy keeps must not outlive the scheduler that it was derived from."""
    policy = POLICIES[name]()
    first = list(Simulator(policy, TARGETS, true_times(3)).run(workload(3)))
    assert repr(list(Simulator(policy, TARGETS, true_times(3)).run(workload(3)))) == repr(first)


@each_policy
def test_the_laws_hold_in_a_long_life(name):
    """A seeded life with crashes, cancellations and bad items, every event of it checked."""
    chance = random.Random(11)
    watch = Watch(POLICIES[name])
    for spec in TARGETS:
        watch.handle(TargetUp(spec), 0)
    now_ns = 0
    for arrival_id, arrival in enumerate(workload(11, count=250), 1):
        now_ns = arrival.at_ns
        wanted = request(arrival_id, 0, arrival.kind, accept_late=arrival.accept_late)
        watch.handle(Submitted((replace(wanted, deadline_ns=now_ns + arrival.budget_ns),)), now_ns)
        for run in list(watch.scheduler.runs.values()):
            if run.id in watch.scheduler.runs and chance.random() < 0.2:
                watch.handle(random_end(chance, run.id, run.request_ids), now_ns)
        if chance.random() < 0.02:
            spec = chance.choice(TARGETS)
            watch.handle(TargetDown(spec.id, "crashed", 3 * MS), now_ns)
            watch.handle(TargetUp(spec), now_ns)
    watch.close()


def random_end(chance: random.Random, run_id: int, ids: tuple[int, ...]) -> Event:
    dice = chance.random()
    if dice < 0.1:
        return BatchFailed(run_id, "broken", started=dice < 0.05)
    return BatchDone(run_id, {chance.choice(ids): "bad"} if dice < 0.2 else {})


@each_policy
def test_the_future_does_not_show(name):
    """Two worlds that differ only in how long the tenth run will take bring the same commands
    until it ends: nothing of it can have been known before."""

    def commands_until_tenth_is_done(slower: int) -> list[str]:
        scheduler = Scheduler(POLICIES[name]())
        said = [repr(scheduler.handle(TargetUp(target()), 0))]
        ends: list[tuple[int, int]] = []
        for request_id in range(1, 60):
            now_ns = request_id * MS
            while ends and ends[0][0] <= now_ns:
                if ends[0][1] == 10:
                    return said
                end_ns, run_id = ends.pop(0)
                said.append(repr(scheduler.handle(BatchDone(run_id), end_ns)))
                ends.extend(planned(scheduler, ends, slower))
            event = Submitted((request(request_id, request_id + 20),))
            said.append(repr(scheduler.handle(event, now_ns)))
            ends.extend(planned(scheduler, ends, slower))
        return said

    slow, fast = commands_until_tenth_is_done(3), commands_until_tenth_is_done(1)
    shorter = min(len(slow), len(fast))
    assert shorter > 15
    assert slow[:shorter] == fast[:shorter]


def planned(scheduler: Scheduler, ends: list[tuple[int, int]], slower: int) -> Iterator[Any]:
    known = {run_id for _, run_id in ends}
    last_ns = max([scheduler.now_ns, *(end_ns for end_ns, _ in ends)])
    for run in list(scheduler.runs.values()):
        if run.id not in known:
            last_ns += run.expected_ns * (slower if run.id == 10 else 1)
            yield last_ns, run.id


# -- corners


@each_policy
def test_without_targets_it_says_so(name):
    watch = Watch(POLICIES[name])
    assert outcomes(submit(watch, request(1, 50))) == {1: Outcome.UNAVAILABLE}
    watch.close()


@each_policy
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


@each_policy
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


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"fcfs"}))
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
    with pytest.raises(ValueError, match=r"policy 'lifo' is not known; there are edf, fcfs, good"):
        make_policy("lifo")
    with pytest.raises(ValueError, match=r"policy 'edf': .*unexpected keyword argument 'depth'"):
        make_policy("edf", depth=3)


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
