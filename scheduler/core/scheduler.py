"""The state machine: events in, commands out. The only mutator of scheduling state.

Everything that changes what is queued, running or finished is in this file, and nothing here
knows a clock, a socket or a policy's rule. Time is an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    PolicySwapped,
    Submitted,
    TargetDown,
    TargetReport,
    TargetUp,
    Woken,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Decision, Drop, Place, Policy, View, Wake
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request, RequestClass, alone
from scheduler.core.story import Story, StoryEntry
from scheduler.core.targets import Run, TargetState

_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scheduler holds at most.

    Attributes:
        requests: Accepted requests that have not ended, queued and running.
        bytes: The memory of their tensors.
        attempts: How often one request is executed before it counts as failed.
        story_entries: How many events and commands are remembered for `story`.
    """

    requests: int = 10_000
    bytes: int = 1 << 30
    attempts: int = 2
    story_entries: int = 20_000


class InvariantError(AssertionError):
    """The scheduler's state, or what it is told, contradicts itself."""


class ImpossibleDecision(Exception):
    """A policy decided what can't be done; the message says why and tells the story."""


class PolicyFailed(Exception):
    """The policy raised, or decided the impossible; the state is sound and nothing is lost.

    Attributes:
        commands: What is to be done all the same.
    """

    def __init__(self, message: str, commands: list[Command]) -> None:
        """Keeps the commands of the event during which it happened."""
        super().__init__(message)
        self.commands = commands


@dataclass(slots=True)
class _Record:
    """An accepted request that has not ended."""

    request: Request
    arrived_ns: int
    queued: bool = False
    run: Run | None = None
    queue_ns: int = 0
    attempts: int = 0


class Scheduler:
    """Holds the queues and targets, asks the policy, and says what is to be done.

    Args:
        policy: The rule that decides.
        limits: What may be held at most.
    """

    def __init__(self, policy: Policy, limits: Limits = Limits()) -> None:  # noqa: B008
        """Starts empty, at time 0."""
        self.policy = policy
        self.limits = limits
        self.queues: dict[RequestClass, ClassQueue] = {}
        self.targets: dict[str, TargetState] = {}
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.accepted = 0
        self.now_ns = 0
        self._records: dict[int, _Record] = {}
        self._runs: dict[int, Run] = {}
        self._held_bytes = 0
        self._last_id = 0
        self._next_run_id = 1
        self._expiries: list[tuple[int, int]] = []
        self._armed_ns: int | None = None
        self._wish_ns: int | None = None
        self._commands: list[Command] = []
        self._story = Story(limits.story_entries)
        self._view = View(self.queues, self.targets)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Submitted: self._on_submitted,
            Cancelled: self._on_cancelled,
            BatchDone: self._on_batch_done,
            BatchFailed: self._on_batch_failed,
            TargetUp: self._on_target_up,
            TargetDown: self._on_target_down,
            TargetReport: self._on_target_report,
            PolicySwapped: self._on_policy_swapped,
            Woken: self._on_woken,
        }

    # -- the one entrance

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Takes note of an event and says what to do.

        Args:
            event: What happened.
            now_ns: When, on a monotonic clock; never before the previous event.

        Raises:
            InvariantError: Time ran backwards, or an event names a run or target that is not
                known.
            PolicyFailed: The policy raised or decided the impossible.
        """
        if now_ns < self.now_ns:
            raise InvariantError(f"time went back from {self.now_ns} to {now_ns} ns")
        self.now_ns = self._view.now_ns = now_ns
        commands: list[Command] = []
        self._commands = commands
        self._story.add(now_ns, (event,))
        self._view.arrivals = ()
        self._expire()
        self._handlers[type(event)](event)
        failure = self._decide() if self.queues else None
        self._arm()
        self._story.add(now_ns, commands)
        if failure is not None:
            raise PolicyFailed(f"{type(failure).__name__}: {failure}", commands) from failure
        return commands

    # -- events

    def _on_submitted(self, event: Submitted) -> None:
        arrivals = []
        for request in event.requests:
            if request.id <= self._last_id:
                raise InvariantError(f"request {request.id} came after {self._last_id}")
            self._last_id = request.id
            self.accepted += 1
            record = _Record(request, self.now_ns)
            self._records[request.id] = record
            self._held_bytes += request.size_bytes
            refusal = self._refusal(request)
            if refusal is not None:
                self._finish(record, *refusal)
                continue
            heapq.heappush(self._expiries, (request.deadline_ns, request.id))
            self._enqueue(record)
            arrivals.append(request)
        self._view.arrivals = tuple(arrivals)

    def _refusal(self, request: Request) -> tuple[Outcome, str] | None:
        limits = self.limits
        if len(self._records) > limits.requests:
            return Outcome.OVERLOADED, f"{limits.requests} requests are held already"
        if self._held_bytes > limits.bytes:
            return Outcome.OVERLOADED, f"requests hold {limits.bytes} bytes of tensors already"
        if request.deadline_ns <= self.now_ns:
            return Outcome.EXPIRED, "the deadline had passed on arrival"
        if not self._servable(request):
            return Outcome.UNAVAILABLE, self._why_unavailable(request.kind)
        return None

    def _servable(self, request: Request) -> bool:
        """Whether a target that has the model is up, or is back before the deadline."""
        found = False
        for target in self.targets.values():
            if offers := target.usable(request.kind):
                back_ns = target.returns_ns
                if target.up or (back_ns is not None and back_ns < request.deadline_ns):
                    found = True
                    for offer in offers:
                        target.curve(offer).refresh(self.now_ns)
        return found

    def _why_unavailable(self, kind: RequestClass) -> str:
        wanted = f"model {kind.model!r}" + (f" variant {kind.variant!r}" if kind.variant else "")
        down = [t.spec.id for t in self.targets.values() if t.usable(kind)]
        if not down:
            return f"no target has {wanted} ready"
        return f"{wanted} runs on {', '.join(down)}, which is down"

    def _on_cancelled(self, event: Cancelled) -> None:
        record = self._records.get(event.request_id)
        if record is not None:
            self._finish(record, Outcome.CANCELLED, "the caller cancelled")

    def _on_batch_done(self, event: BatchDone) -> None:
        run = self._end_run(event.run_id)
        target = self.targets[run.target_id]
        started_ns = max(run.dispatched_ns, target.last_done_ns)
        target.last_done_ns = self.now_ns
        target.curve(run.offer).observe(len(run.request_ids), self.now_ns - started_ns, self.now_ns)
        for record in self._still_waiting(run):
            error = event.errors.get(record.request.id)
            if error is not None:
                self._finish(record, Outcome.FAILED, error)
            elif self.now_ns < record.request.deadline_ns:
                self._finish(record, Outcome.COMPLETED, "in time", run.id)
            else:
                self._finish(record, Outcome.LATE, "finished after the deadline", run.id)

    def _on_batch_failed(self, event: BatchFailed) -> None:
        run = self._end_run(event.run_id)
        self.targets[run.target_id].last_done_ns = self.now_ns
        self._retry(run, event.reason, event.started)

    def _on_target_up(self, event: TargetUp) -> None:
        spec = event.target
        if spec.id in self.targets:
            self._lose_runs(self.targets[spec.id], "the target was replaced")
        state = TargetState(spec, last_done_ns=self.now_ns)
        state.add_offers(spec.offers)
        self.targets[spec.id] = state

    def _on_target_down(self, event: TargetDown) -> None:
        target = self._target(event.target_id)
        target.up = False
        target.returns_ns = (
            None if event.returns_in_ns is None else self.now_ns + event.returns_in_ns
        )
        self._lose_runs(target, event.reason)
        for record in list(self._records.values()):
            if record.run is None and not self._servable(record.request):
                reason = self._why_unavailable(record.request.kind)
                self._finish(record, Outcome.UNAVAILABLE, reason)

    def _on_target_report(self, event: TargetReport) -> None:
        self._target(event.target_id).add_offers(event.offers)

    def _on_policy_swapped(self, event: PolicySwapped) -> None:
        self.policy = event.policy

    def _on_woken(self, _event: Woken) -> None:
        self._armed_ns = self._wish_ns = None

    # -- requests

    def _enqueue(self, record: _Record) -> None:
        kind = record.request.kind
        queue = self.queues.get(kind)
        if queue is None:
            queue = self.queues[kind] = ClassQueue(kind)
        queue.push(record.request)
        record.queued = True

    def _dequeue(self, record: _Record) -> None:
        kind = record.request.kind
        queue = self.queues[kind]
        queue.remove(record.request)
        record.queued = False
        if not queue:
            del self.queues[kind]

    def _finish(
        self,
        record: _Record,
        outcome: Outcome,
        reason: str,
        run_id: int | None = None,
        **detail: Any,
    ) -> None:
        request = record.request
        run = record.run
        if run is not None:
            run.waiting.discard(request.id)
            if not run.waiting and run.id in self._runs and not run.cancelled:
                run.cancelled = True
                self._commands.append(CancelRun(run.id))
        elif record.queued:
            self._dequeue(record)
        waited_ns = record.queue_ns if record.attempts else self.now_ns - record.arrived_ns
        del self._records[request.id]
        self._held_bytes -= request.size_bytes
        self.counts[outcome] += 1
        self._commands.append(Finish(request.id, outcome, reason, run_id, waited_ns, detail))

    def _expire(self) -> None:
        expiries = self._expiries
        while expiries and expiries[0][0] <= self.now_ns:
            _, request_id = heapq.heappop(expiries)
            record = self._records.get(request_id)
            if record is None or (record.run is not None and record.request.accept_late):
                continue
            where = "in the queue" if record.run is None else f"running on {record.run.target_id}"
            self._finish(record, Outcome.EXPIRED, f"the deadline passed {where}")

    # -- runs

    def _still_waiting(self, run: Run) -> list[_Record]:
        return [self._records[i] for i in run.request_ids if i in run.waiting]

    def _end_run(self, run_id: int) -> Run:
        run = self._runs.pop(run_id, None)
        if run is None:
            raise InvariantError(f"run {run_id} is not known or has ended before")
        del self.targets[run.target_id].runs[run_id]
        return run

    def _lose_runs(self, target: TargetState, reason: str) -> None:
        for position, run_id in enumerate(list(target.runs)):
            self._retry(self._end_run(run_id), reason, started=position == 0)

    def _retry(self, run: Run, reason: str, started: bool) -> None:
        """Puts the requests of a run without results back, or fails them.

        Where one of them may have brought the target down, each runs alone from now on, so
        that it can't take others with it a second time.
        """
        for record in self._still_waiting(run):
            record.run = None
            run.waiting.discard(record.request.id)
            if started:
                record.request = alone(record.request)
            else:
                record.attempts -= 1
            if record.attempts >= self.limits.attempts:
                text = f"failed {record.attempts} times, last on {run.target_id}: {reason}"
                self._finish(record, Outcome.FAILED, text)
            elif record.request.deadline_ns <= self.now_ns:
                self._finish(record, Outcome.EXPIRED, f"the deadline passed; {reason}")
            elif not self._servable(record.request):
                self._finish(record, Outcome.UNAVAILABLE, reason)
            else:
                self._enqueue(record)

    def _target(self, target_id: str) -> TargetState:
        target = self.targets.get(target_id)
        if target is None:
            raise InvariantError(f"target {target_id!r} is not known")
        return target

    # -- decisions

    def _decide(self) -> Exception | None:
        try:
            for decision in self.policy.decide(self._view):
                self._carry_out(decision)
        except Exception as error:  # a policy is foreign code: its failure must not lose requests
            return error
        return None

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Place():
                self._place(decision)
            case Drop():
                self._drop(decision)
            case Wake(at_ns):
                if at_ns <= self.now_ns:
                    raise self._impossible(decision, "the time to wake up is not in the future")
                self._wish_ns = at_ns if self._wish_ns is None else min(at_ns, self._wish_ns)

    def _drop(self, drop: Drop) -> None:
        record = self._queued_record(drop.request, drop)
        new = record.arrived_ns == self.now_ns and not record.attempts
        self._finish(
            record,
            Outcome.INFEASIBLE,
            drop.reason,
            stage="refused" if new else "evicted",
            earliest_budget_ms={k: ns / _MS for k, ns in drop.earliest_budget_ns.items()},
        )

    def _queued_record(self, request: Request, decision: Decision) -> _Record:
        record = self._records.get(request.id)
        if record is None or record.run is not None:
            raise self._impossible(decision, f"request {request.id} is not queued", request.id)
        return record

    def _place(self, place: Place) -> None:
        target, records = self._checked(place)
        expected_ns = target.curve(place.offer).predict(len(records), 0.5)
        ids = tuple(request.id for request in place.requests)
        run = Run(
            self._next_run_id, place.target_id, place.offer, ids, set(ids), self.now_ns, expected_ns
        )
        self._next_run_id += 1
        for record in records:
            self._dequeue(record)
            record.run = run
            record.attempts += 1
            record.queue_ns = self.now_ns - record.arrived_ns
        self._runs[run.id] = target.runs[run.id] = run
        self._commands.append(
            Dispatch(
                run.id,
                place.target_id,
                place.offer.model,
                place.offer.variant,
                ids,
                max(self._latest_start_ns(request, expected_ns) for request in place.requests),
                place.reason,
            )
        )

    def _checked(self, place: Place) -> tuple[TargetState, list[_Record]]:
        target = self.targets.get(place.target_id)
        if target is None or not target.has_slot():
            raise self._impossible(place, "the target has no free slot")
        if place.offer not in target.offers.get(place.offer.model, ()):
            raise self._impossible(place, "the target does not offer that variant")
        sizes = target.curve(place.offer).batch_sizes
        if len(place.requests) not in sizes:
            raise self._impossible(place, f"batch sizes there are {sizes}")
        records = [self._queued_record(request, place) for request in place.requests]
        kinds = {request.kind for request in place.requests}
        if len(kinds) > 1 or len({request.id for request in place.requests}) < len(records):
            raise self._impossible(place, "a batch holds different requests of one class")
        if place.offer not in target.usable(place.requests[0].kind):
            raise self._impossible(place, "the class does not accept that variant")
        return target, records

    @staticmethod
    def _latest_start_ns(request: Request, expected_ns: int) -> int:
        return request.deadline_ns - (0 if request.accept_late else expected_ns)

    # -- waking up

    def _arm(self) -> None:
        wanted = self._wanted_wake_ns()
        if wanted is not None and (self._armed_ns is None or wanted < self._armed_ns):
            self._armed_ns = wanted
            self._commands.append(WakeAt(wanted))

    def _wanted_wake_ns(self) -> int | None:
        expiries = self._expiries
        while expiries and expiries[0][1] not in self._records:
            heapq.heappop(expiries)
        times = [expiries[0][0]] if expiries else []
        if self._wish_ns is not None:
            times.append(self._wish_ns)
        if self.queues:
            for target in self.targets.values():
                if target.has_slot() and (opens := target.opens_ns(self.now_ns)) > self.now_ns:
                    times.append(opens)
        return min(times, default=None)

    # -- looking in

    def story(self, request_id: int) -> list[StoryEntry]:
        """All remembered events and commands that concern a request, oldest first."""
        return self._story.of(request_id)

    def pending(self) -> Iterator[Request]:
        """The accepted requests that have not ended."""
        return (record.request for record in self._records.values())

    def _impossible(self, decision: Decision, why: str, request_id: int | None = None) -> Exception:
        text = f"{type(self.policy).__name__} decided the impossible: {why}: {decision}"
        if request_id is not None:
            text += "".join(f"\n  {entry}" for entry in self.story(request_id))
        return ImpossibleDecision(text)

    def validate(self) -> None:
        """Checks every invariant of the state.

        Raises:
            InvariantError: One does not hold.
        """
        records = self._records.values()
        queued = [r.id for queue in self.queues.values() for r in queue]
        running = [i for run in self._runs.values() for i in run.waiting]
        targets = self.targets.values()
        laws = {
            "each pending request is queued or runs, once": sorted(queued + running)
            == sorted(self._records),
            "no queue is empty": all(map(len, self.queues.values())),
            "every accepted request has ended once or is pending": self.accepted
            == sum(self.counts.values()) + len(records),
            "no target holds more than its slots": all(
                len(t.runs) <= t.spec.slots and (t.up or not t.runs) for t in targets
            ),
            "runs are where they are said to be": {i for t in targets for i in t.runs}
            == set(self._runs),
            "held bytes are those of the pending requests": self._held_bytes
            == sum(r.request.size_bytes for r in records),
            "nobody waits past the deadline unless late results are wanted": all(
                r.request.deadline_ns > self.now_ns or (r.run and r.request.accept_late)
                for r in records
            ),
            "the next deadline will be noticed": self._armed_ns is not None
            or all(r.request.deadline_ns <= self.now_ns for r in records),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise InvariantError(f"violated: {'; '.join(broken)}")
