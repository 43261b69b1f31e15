"""Policies that wrap another, and targets that cost or are far away."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from policies import POLICIES, make_policy
from policies.cheapest import Cheapest
from policies.edf import Edf
from policies.goodput import Everywhere, Goodput
from policies.hedge import Hedged
from policies.parts.caution import BROKEN
from policies.proactive_drop import ProactiveDrop
from policies.spill import Spill
from replay.laws import MakePolicy, Watch
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch, WakeAt
from scheduler.core.errors import PolicyFailed
from scheduler.core.events import BatchDone, Submitted, TargetUp, Woken
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Place
from scheduler.core.requests import DEFAULT_PRIORITY, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, M, of, offer, outcomes, request, submit, target

CLOUD = replace(
    target("cloud", offer(base_ms=10, item_ms=0.5), slots=4),
    remote=True,
    width=4,
    cost_per_request=0.5,
    transfer_ns=(5 * MS, 0.0),
)


def box(policy: MakePolicy, *specs: TargetSpec) -> Watch:
    watch = Watch(policy)
    for spec in specs or (target(slots=1), CLOUD):
        watch.handle(TargetUp(spec), 0)
    return watch


def sent(commands: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    return [(run.target_id, run.request_ids) for run in of(Dispatch, commands)]


def poisson(seed: int, count: int, per_ms: float) -> Iterator[Arrival]:
    chance = random.Random(seed)
    at_ms = 0.0
    for _ in range(count):
        at_ms += chance.expovariate(per_ms)
        yield Arrival(int(at_ms * MS), M, chance.choice((15, 30, 60)) * MS)


# -- made from options


def test_a_wrapper_takes_another_policy_by_name_with_its_options():
    made: Any = make_policy(
        "spill", inner={"name": "proactive_drop", "inner": {"name": "edf", "quantile": 0.8}}
    )
    assert (type(made.inner), type(made.inner.inner)) == (ProactiveDrop, Edf)
    assert made.quantile == made.inner.quantile == 0.8


def test_of_a_wrapped_policy_the_name_alone_will_do():
    made: Any = make_policy("hedge", inner="edf")
    assert type(made.inner) is Edf
    with pytest.raises(ValueError, match=r"policy 'efd' is not known \(did you mean 'edf'\?\)"):
        make_policy("hedge", inner="efd")


@pytest.mark.parametrize("inner", [{"quantile": 0.9}, 5, ["edf"]])
@pytest.mark.parametrize("wrapper", ["hedge", "proactive_drop", "spill"])
def test_what_is_no_policy_can_not_be_wrapped(wrapper, inner):
    with pytest.raises(ValueError, match=rf"policy '{wrapper}': inner is a policy, as edf"):
        make_policy(wrapper, inner=inner)


def test_an_option_of_a_wrapped_policy_is_told_as_its_own():
    with pytest.raises(ValueError, match=r"policy 'edf' has no option 'depth'"):
        make_policy("spill", inner={"name": "edf", "depth": 3})
    with pytest.raises(ValueError, match=r"policy 'efd' is not known \(did you mean 'edf'\?\)"):
        make_policy("spill", inner={"name": "efd"})


# -- spill


def test_what_is_in_time_here_stays_here():
    watch = box(Spill)
    assert sent(submit(watch, request(1, 50))) == [("cpu:0", (1,))]
    assert sent(submit(watch, request(2, 50))) == []
    watch.close()


@pytest.mark.parametrize("policy", [Spill, Goodput])
def test_nobody_looks_again_for_a_target_that_is_too_slow_for_all_that_wait(policy):
    slow = replace(CLOUD, offers=(offer(base_ms=100),))
    watch = box(policy, target("cpu:0", offer(base_ms=20, item_ms=1, sizes=(1,)), slots=1), slow)
    submit(watch, request(1, 90))
    commands = submit(watch, request(2, 90), at_ms=1)
    assert all(wake.at_ns >= 20 * MS for wake in of(WakeAt, commands))
    watch.close()


@pytest.mark.parametrize("policy", [Spill, Goodput])
def test_what_waits_here_goes_to_a_far_target_just_before_it_is_too_late_for_that(policy):
    watch = box(policy, target("cpu:0", offer(base_ms=50, item_ms=1, sizes=(1,)), slots=1), CLOUD)
    submit(watch, request(1, 200))
    commands = submit(watch, request(2, 110), request(3, 165), at_ms=1)
    (wake,) = of(WakeAt, commands)
    assert wake.at_ns == (110 - 15.5 - 1) * MS  # what the cloud takes, and one to spare
    # The box's own device should have been done long ago.
    assert sent(watch.handle(Woken(), wake.at_ns)) == [("cloud", (2, 3))]
    watch.close()


SLOW = target("cpu:0", offer(base_ms=80, item_ms=20, sizes=(1, 2, 4)), slots=1)
"""It takes 100 ms for one request, and 160 for four."""


@pytest.mark.parametrize("policy", [Spill, Goodput])
def test_a_deadline_that_would_keep_a_batch_small_is_kept_far_away(policy):
    watch = box(policy, SLOW, CLOUD)
    submit(watch, request(1, 900))
    tight = request(2, 230)
    assert sent(submit(watch, tight)) == [], "the device has time for it alone"
    assert sent(submit(watch, request(3, 900))) == [], "and for both"
    assert sent(submit(watch, request(4, 900))) == [("cloud", (2,))], "but not for all three"
    watch.close()


def test_the_default_sends_nothing_to_what_costs_money_that_is_in_time_for_nothing():
    watch = box(Goodput)
    assert sent(submit(watch, request(1, 60))) == [("cpu:0", (1,))]
    assert sent(submit(watch, request(2, 60))) == []
    commands = submit(watch, *(request(i, 19) for i in range(3, 19)))
    assert {where for where, _ in sent(commands)} == {"cloud"}
    watch.close()


def test_the_default_uses_what_is_far_and_costs_nothing_like_any_device():
    watch = box(Goodput, target(slots=1), replace(CLOUD, cost_per_request=0.0))
    submit(watch, request(1, 60))
    assert sent(submit(watch, request(2, 60))) == [("cloud", (2,))]
    watch.close()


def test_costs_do_not_count_after_something_had_to_be_refused():
    watch = box(Goodput)
    submit(watch, request(1, 60))
    submit(watch, request(2, 4))
    assert watch.finished[2].outcome is Outcome.INFEASIBLE
    assert sent(submit(watch, request(3, 60))) == [("cloud", (3,))]
    watch.handle(Woken(), 2_000 * MS)
    submit(watch, request(4, 2_060), at_ms=2_000)
    watch.close()


def test_for_another_scheduler_what_had_to_be_refused_before_is_forgotten():
    policy = Goodput()
    watch = box(lambda: policy, target(slots=1), CLOUD)
    at_ms = 10_000
    many = [request(i, at_ms + 12) for i in range(1, 40)]
    assert Outcome.INFEASIBLE in outcomes(submit(watch, *many, at_ms=at_ms)).values()
    watch.close()
    watch = box(lambda: policy, target(slots=1), CLOUD)
    assert {at for at, _ in sent(submit(watch, request(1, 900)))} == {"cpu:0"}
    assert sent(submit(watch, request(2, 900))) == []
    watch.close()


def test_nothing_is_paid_because_of_a_deadline_that_no_device_could_ever_meet():
    watch = box(Goodput)
    submit(watch, request(1, 2))
    assert watch.finished[1].outcome is Outcome.INFEASIBLE
    assert sent(submit(watch, request(2, 60))) == [("cpu:0", (2,))]
    assert sent(submit(watch, request(3, 60))) == []
    watch.close()


def test_what_would_be_late_here_goes_away():
    watch = box(Spill)
    submit(watch, request(1, 50))
    commands = submit(watch, *(request(i, 19) for i in range(2, 18)))
    assert {where for where, _ in sent(commands)} == {"cloud"}
    assert outcomes(commands) == {}
    watch.close()


def test_a_model_that_is_only_there_runs_there():
    watch = box(Spill, target("cpu:0", offer("x")), CLOUD)
    assert sent(submit(watch, request(1, 50))) == [("cloud", (1,))]
    assert sent(submit(watch, request(2, 50, accept_late=True))) == [("cloud", (2,))]
    watch.close()


@pytest.mark.parametrize(("budget", "where"), [(1.0, ["cloud", "cloud"]), (0.5, ["cloud"])])
def test_what_may_be_late_is_sent_there_while_the_budget_lasts(budget, where):
    watch = box(lambda: Spill(budget_per_hour=budget), target("cpu:0", offer("x")), CLOUD)
    late = [sent(submit(watch, request(i, 5, accept_late=True))) for i in (1, 2, 3)]
    assert [place for placed in late for place, _ in placed] == where
    watch.close()


def test_what_nobody_can_finish_is_told_at_once_with_all_targets():
    watch = box(Spill)
    submit(watch, request(1, 2))
    assert watch.finished[1].outcome is Outcome.INFEASIBLE
    assert watch.finished[1].detail["earliest_budget_ms"] == {"cpu:0": 3.0, "cloud": 15.5}
    watch.close()


def test_what_is_held_for_a_busy_target_far_away_is_one_broken_promise_however_often_asked():
    policy = Spill()
    watch = box(
        lambda: policy,
        target("cpu:0", offer(base_ms=39, sizes=(1,)), slots=1),
        replace(target("far", offer(base_ms=19, sizes=(1,)), slots=1), remote=True),
    )
    here = sent(submit(watch, request(1, 45)))
    away = sent(submit(watch, request(2, 30)))
    assert [where for where, _ in here + away] == ["cpu:0", "far"]
    assert outcomes(submit(watch, request(3, 75))) == {}
    for at_ms in range(1, 19):
        assert outcomes(watch.handle(Woken(), at_ms * MS)) == {}
    inner = policy.inner
    assert isinstance(inner, Everywhere)
    pace = inner.admission.pace(M)
    assert inner.admission.caution.factor(pace, 1.0, DEFAULT_PRIORITY) <= BROKEN
    assert sent(watch.handle(BatchDone(2), 20 * MS)) == [("far", (3,))]
    watch.close()


def test_money_ends():
    watch = box(lambda: Spill(budget_per_hour=1.0), target("cpu:0", offer("x")), CLOUD)
    assert len(sent(submit(watch, request(1, 50), request(2, 50)))) > 0
    assert sent(submit(watch, request(3, 50))) == []
    later_ms = 3_599_999
    assert sent(submit(watch, request(4, later_ms + 50), at_ms=later_ms)) == []
    later_ms = 3_601_000
    assert sent(submit(watch, request(5, later_ms + 50), at_ms=later_ms)) == [("cloud", (5,))]
    watch.close()


def test_a_batch_that_can_not_be_paid_whole_is_bought_in_part():
    each = replace(CLOUD, cost_per_request=1.0)
    watch = box(lambda: Spill(budget_per_hour=5.0), target("cpu:0", offer(base_ms=100)), each)
    bought = sent(submit(watch, *[request(i, 50) for i in range(1, 9)]))
    assert [len(ids) for _, ids in bought] == [4, 1]
    watch.close()


@pytest.mark.no_cover
def test_an_hour_of_spending_is_remembered_by_the_second():
    policy = Spill(budget_per_hour=1e6)
    watch = box(lambda: policy, target("cpu:0", offer("x")), CLOUD)
    for i in range(1, 301):
        submit(watch, request(i, 10 * i + 50), at_ms=10 * i)
        run_id = next(reversed(watch.scheduler.runs))
        watch.handle(BatchDone(run_id), 10 * i * MS)
    assert len(policy.budget._spent) == 4
    assert policy.budget.left == 1e6 - 300 * CLOUD.cost_per_request
    policy.budget.look(3_604_000 * MS)
    assert policy.budget.left == 1e6
    watch.close()


def service_ns(run: Dispatch, _kind: RequestClass) -> int:
    size = len(run.request_ids)
    return (3 + 2 * size) * MS if run.target_id == "cpu:0" else 10 * MS + size * MS // 2


@pytest.mark.no_cover
def test_spilling_saves_what_the_box_alone_would_lose():
    def in_time(policy: Any, *specs: TargetSpec) -> int:
        simulator = Simulator(policy, specs, service_ns)
        endings = list(simulator.run(poisson(4, 800, 1.2)))
        simulator.scheduler.validate()
        return sum(ending.in_time for ending in endings)

    slow = target("cpu:0", offer(base_ms=3, item_ms=2))
    cloud = replace(CLOUD, width=1, slots=2, transfer_ns=(0, 0.0))
    assert in_time(Spill(), slow, cloud) > 1.3 * in_time(Goodput(), slow)


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", [Goodput, Spill])
@pytest.mark.parametrize("per_ms", [0.25, 0.5, 1.0])
def test_who_takes_late_results_too_is_sent_away_and_in_time_as_often(policy, per_ms):
    def in_time(accept_late: bool) -> int:
        cloud = replace(CLOUD, width=1, slots=2)
        specs = target("cpu:0", offer(base_ms=3, item_ms=2)), cloud
        arrivals = (replace(a, accept_late=accept_late) for a in poisson(4, 800, per_ms))
        return sum(
            ending.in_time for ending in Simulator(policy(), specs, service_ns).run(arrivals)
        )

    assert in_time(accept_late=True) > 0.95 * in_time(accept_late=False)


@pytest.mark.parametrize("inner", sorted(set(POLICIES) - {"spill"}))
@pytest.mark.parametrize("wrapper", ["hedge", "proactive_drop", "spill"])
def test_wrappers_keep_the_laws_around_any_policy(wrapper, inner):
    chance = random.Random(inner)
    watch = box(lambda: make_policy(wrapper, inner={"name": inner}))
    for i, arrival in enumerate(poisson(5, 120, 0.6), 1):
        now_ns = arrival.at_ns
        late = chance.random() < 0.2
        due_ms = (now_ns + arrival.budget_ns) / MS
        submit(watch, request(i, due_ms, accept_late=late), at_ms=now_ns / MS)
        for run in list(watch.scheduler.runs.values()):
            if chance.random() < 0.3:
                watch.handle(BatchDone(run.id), now_ns)
    watch.close()


# -- proactive_drop


def test_what_will_be_late_is_dropped_before_it_is():
    watch = box(ProactiveDrop, target("cpu:0", offer(sizes=(1,)), slots=1))
    said = submit(watch, *(request(i, 10) for i in range(1, 6)))
    assert Counter(outcomes(said).values()) == {Outcome.INFEASIBLE: 2}
    watch.close()


# -- what targets cost, and how far away they are


DEAR = replace(CLOUD, id="dear", cost_per_request=0.9)
SECONDS = replace(CLOUD, id="seconds", cost_per_request=0.0, cost_per_s=20.0)
FAR = replace(CLOUD, id="far", cost_per_request=0.1, transfer_ns=(40 * MS, 0.0))
"""For one request that takes 10.5 ms: 0.9, 0.21 and 0.1; all of them are open."""


@pytest.mark.parametrize("policy", [Goodput, Spill, Cheapest])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize(("budget_ms", "where"), [(80, "far"), (30, "seconds")])
def test_of_several_clouds_the_cheapest_that_is_in_time_gets_what_is_late_here(
    policy, order, budget_ms, where
):
    clouds = DEAR, SECONDS, FAR
    watch = box(policy, target("cpu:0", offer(base_ms=200), slots=1), *(clouds[i] for i in order))
    assert sent(submit(watch, request(1, budget_ms))) == [(where, (1,))]
    watch.close()


@pytest.mark.parametrize("policy", [Goodput, Spill])
def test_when_the_cheapest_cloud_is_full_the_next_one_is_taken(policy):
    small = replace(FAR, slots=1, width=1)
    watch = box(policy, target("cpu:0", offer(base_ms=200), slots=1), DEAR, small)
    assert sent(submit(watch, request(1, 80))) == [("far", (1,))]
    assert sent(submit(watch, request(2, 60))) == [("dear", (2,))]
    watch.close()


def test_what_the_cheapest_cloud_can_not_be_paid_for_any_more_is_not_sent_to_a_dearer_one():
    watch = box(
        lambda: Spill(budget_per_hour=0.35), target("cpu:0", offer("x")), DEAR, SECONDS, FAR
    )
    places = [sent(submit(watch, request(i, 80))) for i in range(1, 7)]
    assert places == [[("far", (1,))], [("far", (2,))], [("far", (3,))], [], [], []]
    watch.close()


def test_after_a_refusal_clouds_are_filled_last_and_the_cheapest_first():
    watch = box(Goodput, DEAR, FAR, target("cpu:0", slots=1))
    submit(watch, request(1, 3), request(2, 3))
    assert watch.finished[2].outcome is Outcome.INFEASIBLE
    watch.handle(BatchDone(1), 3 * MS)
    places = [sent(submit(watch, request(i, 90), at_ms=3))[0][0] for i in (3, 4)]
    assert places == ["cpu:0", "far"]
    watch.close()


def test_cheapest_uses_what_costs_only_when_it_must():
    free = target(slots=1)
    watch = box(Cheapest, free, replace(CLOUD, transfer_ns=(0, 0.0)))
    assert sent(submit(watch, request(1, 50))) == [("cpu:0", (1,))]
    assert sent(submit(watch, request(2, 50))) == []
    assert sent(submit(watch, *(request(i, 13) for i in range(3, 12))))[0][0] == "cloud"
    watch.close()


def drawing(target_id: str, base_ms: int, *energy_uj: int) -> TargetSpec:
    """A device whose batches of 1, 2, 4 … take so much energy, which costs something."""
    made = offer(base_ms=base_ms, item_ms=0.5)
    metered = dict(zip(made.latency_ns, energy_uj, strict=False))
    spec = target(target_id, replace(made, energy_uj=metered), slots=1)
    return replace(spec, cost_per_kwh=0.3)


def test_cheapest_takes_the_device_that_draws_least_and_the_other_where_time_is_short():
    watch = box(Cheapest, drawing("gpu:0", 2, 90_000, 95_000), drawing("npu:0", 8, 5_000, 9_000))
    assert sent(submit(watch, request(1, 50))) == [("npu:0", (1,))]
    assert sent(submit(watch, request(2, 50))) == []
    assert sent(submit(watch, request(3, 2.6))) == [("gpu:0", (3,))]
    watch.close()


def test_cheapest_takes_one_name_of_its_quantile():
    made = Cheapest(), Cheapest(p=0.9), Cheapest(quantile=0.8)
    assert [each.quantile for each in made] == [0.95, 0.9, 0.8]
    with pytest.raises(ValueError, match=r"p and quantile are the same: give one"):
        Cheapest(p=0.9, quantile=0.8)


def test_cheapest_joins_the_batch_where_that_adds_least():
    slow, fast = drawing("cpu:0", 2, 30_000, 31_000), drawing("gpu:0", 1, 35_000, 60_000)
    watch = box(Cheapest, slow, fast)
    three = request(1, 20, priority=1), request(2, 2.6, priority=2), request(3, 20, priority=3)
    assert dict(sent(submit(watch, *three))) == {"cpu:0": (1, 3), "gpu:0": (2,)}
    watch.close()


def test_energy_makes_no_device_one_to_be_spared_by_the_default():
    watch = box(Goodput, target(slots=1), drawing("gpu:0", 2, 90_000))
    assert sent(submit(watch, request(1, 60))) == [("gpu:0", (1,))]  # the faster one
    assert sent(submit(watch, request(2, 60))) == [("cpu:0", (2,))]
    watch.close()


def test_a_probability_is_a_quantile():
    assert Cheapest(p=0.8).quantile == 0.8


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"spill"}))
def test_the_way_there_is_part_of_the_prediction(name):
    """10 ms of execution, 5 ms for the message and 10 for a megabyte: 22 ms are not enough."""
    far = replace(target("far", offer(base_ms=9, item_ms=1)), transfer_ns=(5 * MS, 10.0))
    watch = box(lambda: make_policy(name), far)
    kind = RequestClass("m", shapes=((1_000_000,),))
    submit(watch, request(1, 22, kind, size_bytes=1_000_000))
    assert watch.finished[1].detail["earliest_budget_ms"] == {"far": 25.0}
    watch.close()


# -- hedge


def test_what_hangs_is_sent_again_at_the_last_useful_moment():
    watch = box(lambda: Hedged(extra=1.0), target("cpu:0"), target("gpu:0"))
    assert sent(submit(watch, request(1, 50))) == [("cpu:0", (1,))]
    assert watch.scheduler.alarm.armed_ns == 46 * MS
    assert sent(watch.handle(Woken(), 46 * MS)) == [("gpu:0", (1,))]
    assert outcomes(watch.handle(BatchDone(2), 49 * MS)) == {1: Outcome.COMPLETED}
    watch.close()


@pytest.mark.parametrize(("budget", "copied"), [(0.4, []), (0.5, [("cloud", (1,))])])
@pytest.mark.parametrize("between", [False, True])
def test_second_copies_are_paid_out_of_the_budget_of_a_wrapped_spill(budget, copied, between):
    inner: dict[str, Any] = {"name": "spill", "inner": "edf", "budget_per_hour": budget}
    if between:
        inner = {"name": "proactive_drop", "inner": inner}
    cloud = replace(CLOUD, offers=target().offers)
    watch = box(lambda: make_policy("hedge", inner=inner, extra=1.0), target(), cloud)
    assert sent(submit(watch, request(1, 50))) == [("cpu:0", (1,))]
    late_ns = watch.scheduler.alarm.armed_ns if copied else 40 * MS
    assert late_ns is not None
    assert sent(watch.handle(Woken(), late_ns)) == copied
    watch.close()


def test_a_copy_goes_where_the_budget_allows_it():
    near = [target(name, offer(base_ms=20)) for name in ("cpu:0", "gpu:0")]
    inner = {"name": "spill", "inner": "edf", "budget_per_hour": 0.0}
    watch = box(lambda: make_policy("hedge", inner=inner, extra=1.0), *near, CLOUD)
    assert sent(submit(watch, request(1, 90))) == [("cpu:0", (1,))]
    late_ns = watch.scheduler.alarm.armed_ns
    assert late_ns is not None
    assert sent(watch.handle(Woken(), late_ns)) == [("gpu:0", (1,))]
    watch.close()


def test_each_request_of_a_batch_that_hangs_has_its_copy_on_a_target_of_its_own():
    near = [
        target(name, offer(base_ms=0, item_ms=10, sizes=(1, 2)))
        for name in ("cpu:0", "cpu:1", "gpu:0")
    ]
    watch = box(lambda: Hedged(inner=Edf(), extra=1.0), *near)
    ((where, ids),) = sent(submit(watch, request(1, 50), request(2, 50)))
    assert (where, ids) == ("cpu:0", (1, 2))
    watch.handle(Woken(), 39 * MS)
    copies = [run for run in watch.scheduler.runs.values() if run.target_id != where]
    assert {run.target_id: run.request_ids for run in copies} == {"cpu:1": (1,), "gpu:0": (2,)}
    watch.close()


def test_what_the_policy_before_has_sent_again_is_not_sent_a_third_time():
    def hedged() -> Hedged:
        return Hedged(inner=Edf(), extra=1.0)

    watch = box(hedged, target("cpu:0"), target("cpu:1"))
    assert sent(submit(watch, request(1, 50))) == [("cpu:0", (1,))]
    assert sent(watch.handle(Woken(), 46 * MS)) == [("cpu:1", (1,))]
    watch.swap(hedged, 46 * MS)
    watch.handle(TargetUp(target("gpu:0", offer(base_ms=0.1, item_ms=0.5))), 46 * MS)
    assert sent(submit(watch, request(2, 90), at_ms=46)) == [("gpu:0", (2,))]
    watch.handle(BatchDone(3), 47 * MS)
    assert sent(watch.handle(Woken(), 49 * MS)) == []
    watch.close()


@pytest.mark.parametrize("wrapper", [Hedged, ProactiveDrop, Spill])
def test_what_a_wrapped_policy_decides_wrongly_is_told_as_without_the_wrapper(wrapper):
    class Lost:
        def decide(self, view):
            for queue in view.queues.values():
                yield Place("tpu:9", offer(), (queue.head(),), "")

    scheduler = Scheduler(wrapper(Lost()))
    scheduler.handle(TargetUp(target()), 0)
    with pytest.raises(PolicyFailed, match="impossible: target 'tpu:9' is not known"):
        scheduler.handle(Submitted((request(1, 50),)), 0)


@pytest.mark.parametrize("wrapper", [Hedged, ProactiveDrop, Spill])
def test_a_wrapped_policy_that_returns_nothing_is_told_so(wrapper):
    class Forgetful:
        def decide(self, view):
            self.seen = view

    scheduler = Scheduler(wrapper(Forgetful()))
    scheduler.handle(TargetUp(target()), 0)
    with pytest.raises(PolicyFailed, match=r"Forgetful.decide returned None; is a `return` miss"):
        scheduler.handle(Submitted((request(1, 50),)), 0)


def test_second_copies_are_capped():
    watch = box(lambda: Hedged(extra=0.5), target("cpu:0"), target("gpu:0"))
    submit(watch, request(1, 50))
    assert sent(watch.handle(Woken(), 46 * MS)) == []
    watch.close()


def test_hedging_saves_what_hangs():
    def in_time(policy: Any) -> int:
        chance = random.Random(8)

        def service_ns(run: Dispatch, _kind: RequestClass) -> int:
            hangs = chance.random() < 0.05
            return 60 * MS if hangs else (2 + len(run.request_ids)) * MS

        specs = [target(name) for name in ("cpu:0", "gpu:0", "npu:0")]
        simulator = Simulator(policy, specs, service_ns)
        endings = list(simulator.run(poisson(6, 1_000, 0.15)))
        simulator.scheduler.validate()
        return sum(ending.in_time for ending in endings)

    assert 1_000 - in_time(Hedged(extra=0.2)) < 0.7 * (1_000 - in_time(Goodput()))
