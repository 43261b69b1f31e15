"""The state machine: events in, commands out. The only mutator of scheduling state.

Every change to what is queued, running or finished goes through this file. Nothing here knows a
clock, a socket or a policy's rule; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scheduler.core.alarm import Alarm
from scheduler.core.availability import refusal, servable, why_unavailable
from scheduler.core.checks import drop_problem, event_problem, hedge_problem, place_problem
from scheduler.core.commands import CancelRun, Command, Dispatch, Finish
from scheduler.core.errors import (
    INTERRUPTIONS,
    ImpossibleDecision,
    InvariantError,
    PolicyFailed,
    place_of,
    words_of,
)
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
    Woken,
)
from scheduler.core.invariants import violations
from scheduler.core.ledger import Ledger, Record
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import (
    Decision,
    Drop,
    Hedge,
    Place,
    Policy,
    View,
    Wake,
    decisions_of,
    quantiles_of,
    watches_runs,
)
from scheduler.core.requests import Request, alone
from scheduler.core.shrinking import form_for
from scheduler.core.story import Story, StoryEntry
from scheduler.core.targets import Run, TargetState

_MS = 1_000_000
_SHOWN = 300


class Scheduler:
    """Holds the queues and targets, asks the policy, and issues commands.

    Args:
        policy: The rule that decides.
        limits: The most that may be held.

    Attributes:
        policy: The current policy.
        limits: The most that may be held.
        ledger: The accepted requests that have not ended.
        queues: The queued ones among them, by class.
        counts: How many requests ended with each outcome.
        targets: All known targets, by id.
        runs: The batches at targets, by run id.
        now_ns: The time of the last event.
        alarm: Keeps track of the next wake-up.
    """

    def __init__(self, policy: Policy, limits: Limits = Limits()) -> None:  # noqa: B008
        """Starts empty, at time 0."""
        self.policy = policy
        self.limits = limits
        self.ledger = Ledger()
        self.queues = self.ledger.queues
        self.counts = self.ledger.counts
        self.targets: dict[str, TargetState] = {}
        self.runs: dict[int, Run] = {}
        self.now_ns = 0
        self.alarm = Alarm()
        self._next_run_id = 1
        self._ending_id = 0
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
            TargetWithdrew: self._on_target_withdrew,
            TargetChanged: self._on_target_changed,
            PolicySwapped: self._on_policy_swapped,
            Woken: self._on_woken,
        }

    # -- the only entrance

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Handles an event and returns the commands to carry out.

        Args:
            event: What happened.
            now_ns: When it happened, on a monotonic clock; never before the previous event.

        Raises:
            InvariantError: Time went backwards, or the event names an unknown run or target or a
                request id that is not new. The state is then unchanged.
            PolicyFailed: The policy raised or made an impossible decision. The event has been
                handled, and the error's `commands` must be carried out like any others.
        """
        if now_ns < self.now_ns:
            raise InvariantError(f"time went back from {self.now_ns} to {now_ns} ns")
        problem = event_problem(event, self.ledger, self.runs, self.targets)
        if problem is not None:
            raise InvariantError(problem)
        self.now_ns = self._view.now_ns = now_ns
        commands = self._commands = []
        self._story.add(now_ns, event)
        self._view._arrivals = []
        self._ending_id = event.run_id if isinstance(event, (BatchDone, BatchFailed)) else 0
        for record in self.ledger.take_expired(now_ns):
            where = f"running on {record.run.target_id}" if record.run else "in the queue"
            self._finish(record, Outcome.EXPIRED, f"the deadline passed {where}")
        self._handlers[type(event)](event)
        failure = self._decide()
        awaited = self.targets.values() if self.queues else ()
        wake = self.alarm.set(now_ns, self.ledger.next_expiry_ns(), awaited)
        if wake is not None:
            commands.append(wake)
        if commands:
            self._story.add_all(now_ns, commands)
        if failure is not None:
            told = f"{words_of(failure)}{place_of(failure)}"
            raise PolicyFailed(told, commands) from failure
        return commands

    # -- events

    def _on_submitted(self, event: Submitted) -> None:
        for target in self.targets.values():
            if target.refresh(self.now_ns):
                self._view.curve_epoch += 1
        for request in event.requests:
            record = self.ledger.open(request, self.now_ns)
            problem = refusal(request, self.now_ns, self.ledger, self.limits, self.targets)
            if problem is None:
                self.ledger.enqueue(record)
                self._view._arrivals.append(request)
            else:
                self._finish(record, *problem)

    def _on_cancelled(self, event: Cancelled) -> None:
        record = self.ledger.records.get(event.request_id)
        if record is not None:
            self._finish(record, Outcome.CANCELLED, event.reason)

    def _on_batch_done(self, event: BatchDone) -> None:
        run = self.runs.pop(event.run_id)
        target = self.targets[run.target_id]
        target.observe(run, self.now_ns)
        target.end(run, self.now_ns, started=True)
        self._view.curve_epoch += 1
        for record in self._still_waiting(run):
            error = event.errors.get(record.request.id)
            if error is not None and record.hedge is not None:
                run.waiting.discard(record.request.id)
                record.keep_other(run, started=True)
            elif error is not None:
                self._finish(record, Outcome.FAILED, error)
            elif self.now_ns <= record.request.deadline_ns:
                self._finish(record, Outcome.COMPLETED, "in time", run.id)
            else:
                self._finish(record, Outcome.LATE, "finished after the deadline", run.id)

    def _on_batch_failed(self, event: BatchFailed) -> None:
        run = self.runs.pop(event.run_id)
        target = self.targets[run.target_id]
        target.end(run, self.now_ns, event.started)
        self._retry(run, target, event.reason, event.started)
        if target.spec.too_large:
            records = self.ledger.records
            own = [records[i] for i in run.request_ids if i in records and records[i].queued]
            self._end_unservable(own, event.reason)

    def _on_target_up(self, event: TargetUp) -> None:
        """Adds or replaces a target.

        Requests that only its predecessor with the same id could serve stay queued if it has yet to
        report an offer for them.
        """
        target_id, now_ns = event.target.id, self.now_ns
        former = self.targets.get(target_id)
        state = TargetState(event.target, last_done_ns=now_ns, told_ns=now_ns, up_ns=now_ns)
        state.awaited = event.awaited
        self.targets[target_id] = state
        state.add_offers(event.target.offers)
        self._fleet_changed()
        if former is not None:
            self._lose_runs(former, "the target was replaced")
            self._end_unservable_by(former, f"{target_id} came back without it")

    def _on_target_down(self, event: TargetDown) -> None:
        target = self.targets[event.target_id]
        target.up = False
        back_ns = event.returns_in_ns
        target.returns_ns = None if back_ns is None else self.now_ns + back_ns
        if event.removed:
            del self.targets[event.target_id]
        self._fleet_changed()
        self._lose_runs(target, event.reason, event.blameless)
        self._end_unservable_by(target, event.reason)

    def _on_target_report(self, event: TargetReport) -> None:
        target = self.targets[event.target_id]
        target.add_offers(event.offers)
        target.told_ns = self.now_ns
        self._fleet_changed()
        if not event.offers:
            target.awaited = ()
            self._end_unservable(self.ledger.queued(), f"{event.target_id} has reported all it has")

    def _on_target_withdrew(self, event: TargetWithdrew) -> None:
        target = self.targets[event.target_id]
        served = {kind for kind in self.queues if target.usable(kind)}
        target.withdraw(event.variants)
        target.told_ns = self.now_ns
        self._fleet_changed()
        left = [record for record in self.ledger.queued() if record.request.kind in served]
        self._end_unservable(left, event.reason)

    def _on_target_changed(self, event: TargetChanged) -> None:
        target = self.targets[event.target.id]
        before = target.spec.too_large
        target.change(event.target, self.now_ns + event.closed_ns if event.closed_ns else 0)
        target.told_ns = self.now_ns
        self._fleet_changed()
        if event.closed_ns:
            self._end_unservable_by(target, f"closed for {event.closed_ns / _MS:.0f} ms")
        if new := set(target.spec.too_large).difference(before):
            waiting = [(record.request.kind, record) for record in self.ledger.queued()]
            alike = [record for kind, record in waiting if (kind.model, kind.shapes) in new]
            self._end_unservable(alike, "like an earlier request")

    def _fleet_changed(self) -> None:
        view = self._view
        view.fleet_epoch += 1
        view.curve_epoch += 1
        view.has_peers = any(target.spec.peer for target in self.targets.values())

    def _on_policy_swapped(self, event: PolicySwapped) -> None:
        self.policy = event.policy

    def _on_woken(self, _event: Woken) -> None:
        self.alarm.rang()

    def _end_unservable(self, queued: list[Record], reason: str) -> None:
        """Ends those of the given queued requests that no target can serve any more."""
        for record in queued:
            if not servable(record.request, self.now_ns, self.targets):
                why = f"{why_unavailable(record.request.kind, self.targets)}: {reason}"
                self._finish(record, Outcome.UNAVAILABLE, why)

    def _end_unservable_by(self, target: TargetState, reason: str) -> None:
        """Ends the queued requests that this target could have served and no other can."""
        queued = self.ledger.queued()
        kinds = {kind for kind in self.queues if target.usable(kind) or target.expects(kind)}
        self._end_unservable([r for r in queued if r.request.kind in kinds], reason)

    # -- requests and runs

    def _finish(
        self,
        record: Record,
        outcome: Outcome,
        reason: str,
        run_id: int | None = None,
        **detail: Any,
    ) -> None:
        request = record.request
        self.ledger.close(record, outcome)
        if record.run is not None:
            self._release(record.run)
        if record.hedge is not None:
            self._release(record.hedge)
        waited_ns = record.queue_ns if record.attempts else self.now_ns - record.arrived_ns
        self._commands.append(Finish(request.id, outcome, reason, run_id, waited_ns, detail))

    def _release(self, run: Run) -> None:
        """Cancels a run if nobody waits for it any more."""
        if run.waiting or run.cancelled or run.id == self._ending_id:
            return
        if run.id in self.runs:
            run.cancelled = True
            self._commands.append(CancelRun(run.id))

    def _still_waiting(self, run: Run) -> list[Record]:
        return [self.ledger.records[i] for i in run.request_ids if i in run.waiting]

    def _lose_runs(self, target: TargetState, reason: str, blameless: bool = False) -> None:
        """Removes the runs of a target that is gone; only the first `width` of them had started."""
        for position, run in enumerate(list(target.runs.values())):
            started = position < target.spec.width and not blameless
            del self.runs[run.id]
            target.end(run, self.now_ns, started=started)
            self._retry(run, target, reason, started=started)

    def _retry(self, run: Run, target: TargetState, reason: str, started: bool) -> None:
        """Requeues the requests of a run that gave no results, or fails them.

        If one of them may have caused the failure, each runs alone from now on, so that it can't
        bring others down a second time.
        """
        shared = len(run.request_ids) > 1
        waiting = self._still_waiting(run)
        for record in waiting:
            run.waiting.discard(record.request.id)
            if record.hedge is not None:
                record.keep_other(run, started)
                continue
            record.run = None
            if started:
                remote_id = run.target_id if target.spec.remote else None
                record.request = alone(record.request, remote_id)
            else:
                record.attempts -= 1
            if started and record.attempts >= self.limits.attempts and not shared:
                text = f"failed {record.attempts} times, last on {run.target_id}: {reason}"
                self._finish(record, Outcome.FAILED, text)
            elif record.request.deadline_ns < self.now_ns:
                self._finish(record, Outcome.EXPIRED, f"the deadline passed; {reason}")
            else:
                self.ledger.requeue(record)
        if not target.has(run.offer):  # when it was withdrawn, these were not in the queue
            self._end_unservable([record for record in waiting if record.queued], reason)

    # -- decisions

    def _decide(self) -> BaseException | None:
        self.alarm.forget_wishes()
        try:
            if self.queues or (self.runs and watches_runs(self.policy)):
                for decision in decisions_of(self.policy, self._view):
                    self._carry_out(decision)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # a failing policy must lose no request
            return error
        return None

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Place():
                self._place(decision)
            case Drop():
                self._drop(decision)
            case Hedge():
                self._hedge(decision)
            case Wake(at_ns):
                if at_ns <= self.now_ns:
                    raise self._impossible(decision, "the time to wake up is not in the future")
                self._story.add(self.now_ns, decision)
                self.alarm.wish(at_ns)
            case _:
                raise self._impossible(decision, "that is no decision (Place, Drop, Wake, Hedge)")

    def _drop(self, drop: Drop) -> None:
        problem = drop_problem(drop.request, self.ledger.records)
        if problem is not None:
            raise self._impossible(drop, *problem)
        record = self.ledger.records[drop.request.id]
        new = record.arrived_ns == self.now_ns and not record.attempts
        for target in self.targets.values():
            target.refused(drop.request.kind, drop.request.deadline_ns - record.arrived_ns)
        self._finish(
            record,
            Outcome.INFEASIBLE,
            drop.reason,
            stage="refused" if new else "evicted",
            earliest_budget_ms={k: ns / _MS for k, ns in drop.earliest_budget_ns.items()},
        )

    def _place(self, place: Place) -> None:
        target = self._target_of(place)
        problem = place_problem(place, target, self.ledger.records, self.now_ns)
        if problem is not None:
            raise self._impossible(place, *problem)
        run = self._send(place, target)
        for request in place.requests:
            self._bind(self.ledger.records[request.id], run)

    def _hedge(self, hedge: Hedge) -> None:
        target = self._target_of(hedge)
        problem = hedge_problem(hedge, target, self.ledger.records, self.now_ns)
        if problem is not None:
            raise self._impossible(hedge, *problem)
        run = self._send(hedge, target)
        for request in hedge.requests:
            self.ledger.records[request.id].hedge = run

    def _target_of(self, place: Place | Hedge) -> TargetState:
        target = self.targets.get(place.target_id)
        if target is None:
            raise self._impossible(place, f"target {place.target_id!r} is not known")
        return target

    def _send(self, place: Place | Hedge, target: TargetState) -> Run:
        size = len(place.requests)
        curve = target.curve(place.offer, place.requests[0].kind)
        expected_ns = curve.predict(size, 0.5)
        # Quantiles are learned separately and may cross, and a policy may rely on one below the
        # median.
        quantiles = quantiles_of(self.policy)
        least_ns = min(expected_ns, *[curve.predict(size, q) for q in quantiles])
        ids = tuple([request.id for request in place.requests])
        size_bytes = latest_ns = 0
        for request in place.requests:
            size_bytes += request.size_bytes
            start_ns = request.deadline_ns - (0 if request.accept_late else least_ns)
            if start_ns > latest_ns:
                latest_ns = start_ns
        form = None
        if target.spec.forms:
            form = form_for(place, target, self._view, self.policy)
        run = Run(
            self._next_run_id,
            place.target_id,
            place.offer,
            ids,
            set(ids),
            self.now_ns,
            expected_ns,
            target.way_wait_ns(self.now_ns) + target.spec.transfer(size_bytes, form),
            place.requests,
            spread_ns=curve.spread_ns(size),
        )
        self._next_run_id += 1
        self.runs[run.id] = run
        target.begin(run)
        model, variant = place.offer.model, place.offer.variant
        name = "" if form is None else form.name
        self._commands.append(
            Dispatch(run.id, place.target_id, model, variant, ids, latest_ns, place.reason, name)
        )
        return run

    def _bind(self, record: Record, run: Run) -> None:
        self.ledger.dequeue(record)
        record.run = run
        record.attempts += 1
        record.queue_ns = self.now_ns - record.arrived_ns

    # -- inspection

    def story(self, request_id: int) -> list[StoryEntry]:
        """The remembered events and commands that concern a request, oldest first."""
        return self._story.of(request_id)

    def pending(self) -> Iterator[Request]:
        """The accepted requests that have not ended."""
        return (record.request for record in self.ledger.records.values())

    def _impossible(self, decision: Decision, why: str, request_id: int | None = None) -> Exception:
        told = str(decision)  # an offer in it may list a thousand latencies
        told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"
        text = f"{type(self.policy).__name__} decided the impossible: {why}: {told}"
        if request_id is not None:
            text += "".join(f"\n  {entry}" for entry in self.story(request_id))
        return ImpossibleDecision(text)

    def validate(self) -> None:
        """Checks every invariant of the state.

        Raises:
            InvariantError: At least one does not hold.
        """
        broken = violations(self)
        if broken:
            raise InvariantError(f"violated: {'; '.join(broken)}")
