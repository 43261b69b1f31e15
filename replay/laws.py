"""A scheduler under watch: every law of the design is checked at every event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scheduler.core.checks import batch_problem
from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.events import BatchDone, Event, PolicySwapped, Submitted, Woken
from scheduler.core.forms import Form
from scheduler.core.latency import Ladder, LatencyCurve, _Promise, _Window
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import (
    Decision,
    Hedge,
    Place,
    Policy,
    View,
    Wake,
    decisions_of,
    quantile_of,
    quantiles_of,
    watches_runs,
)
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.sizes import SizedCurve, SizedCurves
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import Run, TargetState

MakePolicy = Callable[[], Policy]


_NO_QUANTILE = "; the policy has no attribute `quantile`, so 0.5 is assumed"
_CAUSALITY = "5 (causality): an effect is never before its cause"
_ANSWERED = frozenset({Outcome.COMPLETED, Outcome.LATE})


class LawBroken(AssertionError):
    """A law does not hold; the message says which one and where."""


def demand(holds: object, law: str) -> None:
    """Raises `LawBroken` unless a condition holds, even where assertions are disabled."""
    if not holds:
        raise LawBroken(law)


class Watched:
    """A policy whose every decision is checked at the moment it is taken."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.quantile = quantile_of(policy, 0.5)
        self.quantiles = quantiles_of(policy, 0.5)
        self.taken = "" if hasattr(policy, "quantile") else _NO_QUANTILE
        self.doomed: list[str] = []
        self.wished = False
        self.view: View | None = None
        self.watches_runs = watches_runs(policy)

    def decide(self, view: View) -> Iterator[Decision]:
        """Yields the policy's decisions unchanged."""
        self.view = view
        self.wished = False
        for decision in decisions_of(self.policy, view):
            if isinstance(decision, (Place, Hedge)):
                self._look_at(decision, view)
            self.wished |= isinstance(decision, Wake)
            yield decision

    def _look_at(self, place: Place | Hedge, view: View) -> None:
        target = view.targets.get(place.target_id)
        start_ns = view.start_ns(target) if target else None
        if target is None or start_ns is None or batch_problem(place, target, view.now_ns):
            return  # it is impossible, and the scheduler says why
        size = len(place.requests)
        kind = place.requests[0].kind
        done_ns = start_ns + min(
            [view.predict_ns(target, place.offer, size, q, kind) for q in self.quantiles]
        )
        done_ns += target.spec.quickest_ns(kind, sum([r.size_bytes for r in place.requests]))
        for request in place.requests:
            if request.deadline_ns < view.now_ns:
                self.doomed.append(f"{request} is past its deadline at {view.now_ns}")
            if request.deadline_ns < done_ns and not request.accept_late:
                self.doomed.append(f"{request} would be done at {done_ns}{self.taken}")


def watched(policy: Policy) -> Watched:
    """Wraps a policy under its own class name, which the scheduler's error messages quote."""
    watcher: type[Watched] = type(type(policy).__name__, (Watched,), {})
    return watcher(policy)


class Watch:
    """A scheduler with a log of its events and commands, checked against the laws."""

    def __init__(self, make_policy: MakePolicy, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.policy = watched(make_policy())
        self._make_policy = make_policy
        self.scheduler = Scheduler(self.policy, self.limits)
        self.log: list[tuple[Event | MakePolicy, int, str]] = []
        self.submitted: dict[int, Request] = {}
        self.finished: dict[int, Finish] = {}
        self.runs: dict[int, Dispatch] = {}

    # -- events

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Passes an event to the scheduler, and checks every law.

        Raises:
            LawBroken: A law does not hold.
        """
        return self._handle(event, event, now_ns)

    def swap(self, make_policy: MakePolicy, now_ns: int) -> list[Command]:
        """Swaps in another policy."""
        self.policy = watched(make_policy())
        return self._handle(PolicySwapped("other", self.policy), make_policy, now_ns)

    def _handle(self, event: Event, logged: Event | MakePolicy, now_ns: int) -> list[Command]:
        waiting = self._waiting_in(event)
        commands = self.scheduler.handle(event, now_ns)
        self.log.append((logged, now_ns, repr(commands)))
        if isinstance(event, Submitted):
            self.submitted.update((request.id, request) for request in event.requests)
        self.check_causality(commands, now_ns)
        self.check_conservation(commands)
        self.check_isolation(event, commands, waiting)
        self.check_no_doomed_work(commands, now_ns)
        self.check_capacity()
        self.check_work_conservation()
        self.scheduler.validate()
        return commands

    def _waiting_in(self, event: Event) -> set[int]:
        run = self.scheduler.runs.get(event.run_id) if isinstance(event, BatchDone) else None
        return set(run.waiting) if run else set()

    # -- the laws

    def check_conservation(self, commands: list[Command]) -> None:
        """1: no request ends twice, and none ends that was never submitted."""
        for command in commands:
            if isinstance(command, Finish):
                demand(
                    command.request_id in self.submitted,
                    "1 (conservation): a request ends exactly once",
                )
                demand(command.request_id not in self.finished, "1 (conservation): ended twice")
                self.finished[command.request_id] = command
        pending = {request.id for request in self.scheduler.pending()}
        demand(
            pending | set(self.finished) == set(self.submitted),
            "1 (conservation): a request ends exactly once",
        )
        demand(not pending & set(self.finished), "1 (conservation): a request ends exactly once")

    def check_no_doomed_work(self, commands: list[Command], now_ns: int) -> None:
        """2: nothing is sent past its deadline, or predicted late unless late is accepted."""
        demand(not self.policy.doomed, f"2 (no doomed work): {'; '.join(self.policy.doomed)}")
        for command in commands:
            if isinstance(command, Dispatch):
                for request_id in command.request_ids:
                    demand(
                        self.submitted[request_id].deadline_ns >= now_ns,
                        "2 (no doomed work): nothing is sent past its deadline",
                    )

    def check_capacity(self) -> None:
        """3: no target holds more than its slots, and a target that is down holds nothing.

        A target whose slots were reduced may keep the runs it had then.
        """
        for target in self.scheduler.targets.values():
            slots = max(target.spec.slots, target.grandfathered)
            demand(
                len(target.runs) <= (slots if target.up else 0),
                "3 (capacity): no target holds more than its slots, nor anything while it is down",
            )

    def check_work_conservation(self) -> None:
        """4: no target has a free slot while a request waits that it could finish in time."""
        view = self.policy.view
        if view is None or self.policy.wished:
            return
        for target in view.open_targets():
            start_ns = view.start_ns(target)
            if start_ns is None:
                raise LawBroken("4 (work conservation)")
            for kind, queue in view.queues.items():
                for offer in target.usable(kind):
                    quantiles = self.policy.quantiles
                    one_ns = max([view.predict_ns(target, offer, 1, q, kind) for q in quantiles])
                    done_ns = start_ns + one_ns
                    quickest_ns = target.spec.quickest_ns
                    left = [
                        request
                        for request in queue
                        if request.deadline_ns >= done_ns + quickest_ns(kind, request.size_bytes)
                    ]
                    told = f"{len(left)} of model {kind.model!r}: {[r.id for r in left[:9]]}"
                    demand(
                        not left,
                        f"4 (work conservation): {target.spec.id} idles while requests that it "
                        f"could finish in time ({told}) wait{self.policy.taken}",
                    )

    def check_causality(self, commands: list[Command], now_ns: int) -> None:
        """5: effects follow causes: runs of submitted requests, answers of known runs."""
        demand(self.scheduler.now_ns == now_ns, _CAUSALITY)
        for command in commands:
            match command:
                case Dispatch():
                    demand(command.run_id not in self.runs, _CAUSALITY)
                    for request_id in command.request_ids:
                        demand(request_id in self.submitted, _CAUSALITY)
                        demand(request_id not in self.finished, _CAUSALITY)
                    self.runs[command.run_id] = command
                case Finish(run_id=run_id) if run_id is not None:
                    demand(command.request_id in self.runs[run_id].request_ids, _CAUSALITY)
                    demand(command.outcome in _ANSWERED, _CAUSALITY)
                    deadline_ns = self.submitted[command.request_id].deadline_ns
                    late = command.outcome is Outcome.LATE
                    demand(late == (now_ns > deadline_ns), _CAUSALITY)
                case Finish():
                    demand(command.outcome not in _ANSWERED, _CAUSALITY)
                case CancelRun(run_id):
                    demand(run_id in self.runs, _CAUSALITY)
                case WakeAt(at_ns):
                    demand(at_ns > now_ns, _CAUSALITY)

    def check_determinism(self) -> None:
        """6: the same events give the same commands, byte for byte."""
        again = Scheduler(watched(self._make_policy()), self.limits)
        for event, now_ns, said in self.log:
            if callable(event):
                event = PolicySwapped("other", watched(event()))
            demand(
                repr(again.handle(event, now_ns)) == said,
                "6 (determinism): the same events bring the same commands",
            )

    def check_honest_knowledge(self) -> None:
        """7: the view leads only to what a live system knows."""
        if self.policy.view is not None:
            demand(
                reachable_types(self.policy.view) <= KNOWLEDGE,
                "7 (honest knowledge): a policy sees only what a live system knows",
            )

    def check_isolation(self, event: Event, commands: list[Command], waiting: set[int]) -> None:
        """8: in a finished batch, only items with an error that run nowhere else may fail."""
        if isinstance(event, BatchDone):
            copied = {i for run in self.scheduler.runs.values() for i in run.waiting}
            ended = {c.request_id: c.outcome for c in commands if isinstance(c, Finish)}
            for request_id in waiting:
                if request_id in event.errors:
                    demand(
                        request_id in copied
                        or ended[request_id] in {Outcome.FAILED, Outcome.EXPIRED},
                        "8 (isolation): one bad item fails nobody else",
                    )
                else:
                    demand(
                        ended[request_id] is not Outcome.FAILED,
                        "8 (isolation): one bad item fails nobody else",
                    )

    # -- the end

    def close(self) -> None:
        """Runs the scheduler to the end, with no events but the passing of time."""
        scheduler = self.scheduler
        last_ns = max([r.deadline_ns for r in self.submitted.values()], default=0)
        now_ns = max(scheduler.now_ns, last_ns) + 1
        for run_id in list(scheduler.runs):
            if run_id in scheduler.runs:
                self.handle(BatchDone(run_id), now_ns)
        self.handle(Woken(), now_ns)
        demand(set(self.finished) == set(self.submitted), "1 (conservation): every request ends")
        demand(not scheduler.ledger.records, "1 (conservation): every request ends")
        self.check_determinism()
        self.check_honest_knowledge()
        for request_id in self.submitted:
            story = scheduler.story(request_id)
            demand(isinstance(story[0].what, Submitted), "1 (conservation): every request ends")
            demand(
                self.finished[request_id] in [entry.what for entry in story],
                "1 (conservation): every request ends",
            )


KNOWLEDGE: set[type] = {
    *(View, ClassQueue, Request, RequestClass, TargetState, TargetSpec, Offer, Run, Form),
    *(LatencyCurve, Ladder, SizedCurve, SizedCurves, _Promise, _Window),
}
"""The types that a policy may see, besides numbers, strings and containers."""


def reachable_types(root: object) -> set[type]:
    """The types of all objects reachable through attributes and containers."""
    found: set[type] = set()
    seen: dict[int, object] = {}
    ahead: list[Any] = [root]
    while ahead:
        what = ahead.pop()
        if id(what) in seen:
            continue
        seen[id(what)] = what
        if what is None or isinstance(what, (str, int, float, bool)):
            continue
        if type(what).__module__ in {"builtins", "collections"}:
            demand(not callable(what), f"7 (honest knowledge): a policy can reach {what}")
            ahead.extend(what.items() if isinstance(what, dict) else what)
            continue
        found.add(type(what))
        names = list(getattr(what, "__dict__", {}))
        for base in type(what).__mro__:
            names.extend(getattr(base, "__slots__", ()))
        if isinstance(what, tuple):
            ahead.extend(what)
        ahead.extend(getattr(what, name) for name in names if hasattr(what, name))
    return found
