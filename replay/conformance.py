"""What every policy must do, whatever its rule: keep the laws in randomised runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from policies import DEFAULT, POLICIES
from replay.laws import LawBroken, MakePolicy, Watch, demand
from replay.simulator import Arrival, ServiceTime, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.errors import INTERRUPTIONS, InvariantError, view_changed, words_of
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import (
    Decision,
    Policy,
    View,
    decisions_of,
    quantiles_of,
    watches_runs,
)
from scheduler.core.requests import Request, RequestClass, Shapes
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000


def linear_offer(
    model: str,
    variant: str = "v",
    base_ms: float = 2,
    item_ms: float = 1,
    spread: float = 0.1,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    item_shapes: Shapes = (),
) -> Offer:
    """An offer whose latency is linear in the batch size; `spread` widens it both ways."""
    ladder = {
        size: tuple(
            int((base_ms + item_ms * size) * MS * (1 + spread * (i - 10) / 10)) for i in range(21)
        )
        for size in sizes
    }
    return Offer(model, variant, "runtime", ladder, item_shapes=item_shapes)


TARGETS = (
    TargetSpec("cpu:0", (linear_offer("a"), linear_offer("b", item_ms=2))),
    TargetSpec("gpu:0", (linear_offer("a", "fp16", 1, 0.2),), slots=3),
    TargetSpec(
        "npu:0", (linear_offer("b", base_ms=0, item_ms=4), linear_offer("c", spread=0)), slots=1
    ),
)
ONE = (TargetSpec("cpu:0", (linear_offer("a", spread=0),)),)
KINDS = tuple(map(RequestClass, "aabc"))
ODD_TARGETS = (
    TargetSpec(
        "cpu:0",
        (
            linear_offer("a", sizes=(1,), item_shapes=((4,),)),
            linear_offer("b", sizes=(1, 300), spread=0),
        ),
        *(4, 0),
        width=4,
        cost_per_kwh=0.3,
    ),
    TargetSpec(
        "eu",
        (linear_offer("a"), linear_offer("a", "small", 1), linear_offer("c", item_ms=0)),
        *(16, 5 * MS, 1e-9, 1e9, True),
        width=16,
        transfer_ns=(3 * MS, 2.5),
    ),
    TargetSpec(
        "box-b", (linear_offer("b"),), lead_ns=0, remote=True, transfer_ns=(MS, 0.0), peer=True
    ),
)
YEAR_NS = 365 * 86_400 * 1_000 * MS


def workload(seed: int, count: int = 400, gap_ms: float = 0.7) -> Iterator[Arrival]:
    """Poisson arrivals of four kinds, with varied budgets, priorities and weights."""
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


def odd_workload(seed: int) -> Iterator[Arrival]:
    """Allowed but rare requests: weights from 1e-9 to 1e9, budgets from 1 ns to a year."""
    chance = random.Random(seed)
    at_ns = 0
    for _ in range(120):
        at_ns += chance.choice((0, 1, MS // 2, 2 * MS))
        length = chance.randrange(20)
        kind = RequestClass(
            chance.choice("abc"),
            shapes=((length,),),
            local=chance.random() < 0.2,
            exact=chance.random() < 0.2,
        )
        yield Arrival(
            *(at_ns, kind, chance.choice((1, MS, chance.randrange(60 * MS), YEAR_NS))),
            priority=chance.randrange(8),
            weight=chance.choice((1e-9, 1.0, 1e9)),
            accept_late=chance.random() < 0.4,
            size_bytes=50_000 * length,
        )


def true_times(seed: int) -> ServiceTime:
    """Service times near the profile, and sometimes far above it."""
    chance = random.Random(seed)

    def service_ns(dispatch: Dispatch, _kind: RequestClass) -> int:
        slow = 4 if chance.random() < 0.05 else chance.lognormvariate(0, 0.1)
        return int((2 + len(dispatch.request_ids)) * MS * slow)

    return service_ns


# -- the checks


def ends_everything_and_leaves_the_view_alone(make: MakePolicy) -> None:
    """Every request of a workload ends, and the policy leaves the view unchanged."""
    for seed in (1, 2):
        simulator = Simulator(_Looked(make()), TARGETS, true_times(seed))
        count = len(list(simulator.run(workload(seed))))
        demand(count == 400, f"1 (conservation): {count} of 400 requests ended")
        demand(not any(simulator.scheduler.pending()), "1 (conservation): some never ended")
        simulator.scheduler.validate()


def decides_the_same_again(make: MakePolicy) -> None:
    """Two instances decide alike, and a used one serves a second scheduler as a fresh one would."""
    policy = make()
    first = repr(list(Simulator(policy, TARGETS, true_times(3)).run(workload(3))))
    other = repr(list(Simulator(make(), TARGETS, true_times(3)).run(workload(3))))
    demand(first == other, "6 (determinism): two instances decided differently")
    again = repr(list(Simulator(policy, TARGETS, true_times(3)).run(workload(3))))
    demand(
        first == again,
        "6 (determinism): state of one scheduler was carried over to another; begin afresh when "
        "`view` is another object",
    )


def keeps_the_laws_whatever_happens(make: MakePolicy) -> None:
    """Random runs with crashes, cancellations and failures keep every law at every event."""
    for seed in (11, 12):
        _live(make, TARGETS, workload(seed, count=250), random.Random(seed))


def keeps_the_laws_in_odd_worlds(make: MakePolicy) -> None:
    """The same with a single batch size, targets with many lanes, and extreme requests."""
    for seed in (21, 22):
        _live(make, ODD_TARGETS, odd_workload(seed), random.Random(seed))


def does_not_see_the_future(make: MakePolicy) -> None:
    """No decision depends on how long the tenth run will take until that run ends."""
    slow, fast = (_until_tenth_is_done(make, slower) for slower in (3, 1))
    shorter = min(len(slow), len(fast))
    demand(slow[:shorter] == fast[:shorter], "7 (honest knowledge): the future showed")


def takes_over_what_is_queued(make: MakePolicy) -> None:
    """Swapped in and out with requests queued and running, it loses none."""
    watch = Watch(POLICIES[DEFAULT])
    for spec in TARGETS:
        watch.handle(TargetUp(spec), 0)
    for request_id, arrival in enumerate(workload(5, count=120), 1):
        watch.handle(Submitted((_request(request_id, arrival),)), arrival.at_ns)
        if request_id == 40:
            watch.swap(make, arrival.at_ns)
        if request_id == 80:
            watch.swap(POLICIES[DEFAULT], arrival.at_ns)
        for run_id in list(watch.scheduler.runs)[:1]:
            watch.handle(BatchDone(run_id), arrival.at_ns)
    watch.close()


def says_at_once_what_nobody_can_do(make: MakePolicy) -> None:
    """A hopeless request is dropped on arrival, but runs if a late result is accepted."""
    watch = Watch(make)
    watch.handle(TargetUp(ONE[0]), 0)
    kind = RequestClass("a")
    watch.handle(Submitted((Request(1, kind, 2 * MS),)), 0)
    told = watch.finished.get(1)
    demand(
        told is not None and told.outcome is Outcome.INFEASIBLE,
        "a request with a budget of 2 ms, where one takes 3 ms, was not dropped on arrival",
    )
    watch.handle(Submitted((Request(2, kind, 2 * MS, accept_late=True),)), 0)
    demand(watch.runs, "a request that may be late was left waiting while a target was idle")
    watch.close()


def serves_below_capacity(make: MakePolicy) -> None:
    """Far below capacity, with ample budgets, nearly all requests finish in time."""
    arrivals = [replace(a, budget_ns=200 * MS) for a in workload(9, count=200, gap_ms=20)]
    endings = list(Simulator(make(), TARGETS, true_times(9)).run(arrivals))
    share = sum(ending.in_time for ending in endings) / len(endings)
    demand(share >= 0.9, f"only {share:.0%} of an easy workload was in time")


LAWS: tuple[Callable[[MakePolicy], None], ...] = (
    keeps_the_laws_whatever_happens,
    keeps_the_laws_in_odd_worlds,
    takes_over_what_is_queued,
    says_at_once_what_nobody_can_do,
    does_not_see_the_future,
)
PLAYED: tuple[Callable[[MakePolicy], None], ...] = (
    ends_everything_and_leaves_the_view_alone,
    decides_the_same_again,
    serves_below_capacity,
)
CHECKS = LAWS + PLAYED
"""The checks for a policy; each raises when it fails. Checks that play a whole simulation come last
and run only if the laws hold, since a policy that sends doomed work might never finish one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check.

    Attributes:
        check: Its name.
        about: What it demands.
        problem: What went wrong; None if the check passed.
    """

    check: str
    about: str
    problem: str | None


def conformance(make: MakePolicy) -> Iterator[Verdict]:
    """Runs a policy through every check, each on instances of its own.

    Args:
        make: Makes a new instance of the policy.
    """
    lawful = True
    for check in CHECKS:
        problem = None
        try:
            demand(lawful or check in LAWS, "not tried, because a law is broken")
            check(make)
        except LawBroken as broken:
            problem = str(broken)
        except INTERRUPTIONS:
            raise
        except InvariantError as error:
            problem = view_changed(error)
        except BaseException as error:
            problem = words_of(error)
        lawful &= problem is None
        about = (check.__doc__ or "").strip().rstrip(".")
        yield Verdict(check.__name__.replace("_", " "), about, problem)


# -- parts of the checks


def _live(
    make: MakePolicy,
    specs: Iterable[TargetSpec],
    arrivals: Iterable[Arrival],
    chance: random.Random,
) -> None:
    watch = Watch(make)
    for spec in specs:
        watch.handle(TargetUp(spec), 0)
    for request_id, arrival in enumerate(arrivals, 1):
        now_ns = arrival.at_ns
        watch.handle(Submitted((_request(request_id, arrival),)), now_ns)
        for run in list(watch.scheduler.runs.values()):
            if run.id in watch.scheduler.runs and chance.random() < 0.2:
                watch.handle(_random_end(chance, run.id, run.request_ids), now_ns)
        if chance.random() < 0.05:
            watch.handle(Cancelled(chance.randint(1, request_id)), now_ns)
        if chance.random() < 0.02:
            spec = chance.choice(tuple(specs))
            watch.handle(TargetDown(spec.id, "crashed", 3 * MS), now_ns)
            watch.handle(TargetUp(spec), now_ns)
    watch.close()


class _Looked:
    """A policy that is checked between its decisions: it must leave the view unchanged."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.quantiles = quantiles_of(policy)
        self.watches_runs = watches_runs(policy)

    def decide(self, view: View) -> Iterable[Decision]:
        decisions = iter(decisions_of(self.policy, view))
        while True:
            before = _photograph(view)
            decision = next(decisions, None)
            demand(_photograph(view) == before, "the policy changed the view, which is read-only")
            if decision is None:
                return
            yield decision


def _photograph(view: View) -> str:
    """The contents of a view, without what it derives from them on demand."""
    queues = [(kind, list(queue)) for kind, queue in view.queues.items()]
    targets = [
        (
            *(t.spec, t.up, t.returns_ns, list(t.runs.values()), t.last_done_ns, t.offers),
            [curve.predict(1, 0.5) for o in t.offers.values() for curve in map(t.curve, o)],
        )
        for t in view.targets.values()
    ]
    return repr((view.now_ns, view.arrivals, queues, targets))


def _request(request_id: int, arrival: Arrival) -> Request:
    deadline_ns = arrival.at_ns + arrival.budget_ns
    return Request(
        *(request_id, arrival.kind, deadline_ns, arrival.priority, arrival.weight),
        *(arrival.size_bytes, arrival.accept_late),
    )


def _random_end(chance: random.Random, run_id: int, ids: tuple[int, ...]) -> Event:
    dice = chance.random()
    if dice < 0.1:
        return BatchFailed(run_id, "broken", started=dice < 0.05)
    return BatchDone(run_id, {chance.choice(ids): "bad"} if dice < 0.2 else {})


def _until_tenth_is_done(make: MakePolicy, slower: int) -> list[str]:
    scheduler = Scheduler(make())
    said = [repr(scheduler.handle(TargetUp(ONE[0]), 0))]
    ends: list[tuple[int, int]] = []
    for request_id in range(1, 60):
        now_ns = request_id * MS
        events: list[Event] = [Woken()] if _is_due(scheduler, now_ns) else []
        events.append(Submitted((Request(request_id, KINDS[0], now_ns + 20 * MS),)))
        while ends and ends[0][0] <= now_ns:
            end_ns, run_id = ends.pop(0)
            if run_id == 10:
                return said
            said.append(repr(scheduler.handle(BatchDone(run_id), end_ns)))
            ends.extend(_planned(scheduler, ends, slower))
        said += [repr(scheduler.handle(event, now_ns)) for event in events]
        ends.extend(_planned(scheduler, ends, slower))
    return said


def _is_due(scheduler: Scheduler, now_ns: int) -> bool:
    return scheduler.alarm.armed_ns is not None and scheduler.alarm.armed_ns <= now_ns


def _planned(scheduler: Scheduler, ends: list[tuple[int, int]], slower: int) -> Iterator[Any]:
    known = {run_id for _, run_id in ends}
    last_ns = max([scheduler.now_ns, *(end_ns for end_ns, _ in ends)])
    for run in list(scheduler.runs.values()):
        if run.id not in known:
            last_ns += run.expected_ns * (slower if run.id == 10 else 1)
            yield last_ns, run.id
