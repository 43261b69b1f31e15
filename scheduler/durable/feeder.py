"""Moves tasks from the store into the driver where requests leave room, and their outcomes back.

A task is submitted only while no queue holds a request, and only when a target could start it now.
A task that the policy does not dispatch at once is withdrawn before the next request is submitted.
In the core, a task is a request of the lowest priority and the least weight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import LEAST_WEIGHT, LOWEST_PRIORITY, RequestClass
from scheduler.core.targets import TargetState
from scheduler.daemon.catalog import misfit
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.durable.clock import TaskClock
from scheduler.durable.inputs import Inputs, Operations, fitting
from scheduler.durable.lanes import Lanes, Waiting, Where
from scheduler.durable.later import Later
from scheduler.durable.records import Ended
from scheduler.durable.room import Room, can_be_met, likely_ns
from scheduler.errors import LaxityError

ATTEMPTS = 3
"""How often a task may fail."""

DISK_DELAY_NS = 5_000_000_000
"""How long the feeder pauses after an outcome could not be written."""

ENDING_BYTES = 64_000_000
"""Bytes of outputs being written to disk, above which nothing is fed."""

HORIZON_NS = 10_000_000_000
"""The furthest ahead that a policy sees a task's deadline, or `_LONGEST` times the predicted time
of its batch if that is longer. Otherwise a policy that dispatches at the last moment would hold the
task for days. A task that expires by this deadline before its own is tried again."""

LONGEST_REASON = 500
"""How much of the reason for an outcome is stored, in characters."""

INSISTENT = 3
"""After so many refusals a task runs all the same, if rarely (`room.TRICKLE`). Otherwise a policy
that compares its worth with what it may make late would refuse it for ever, however idle its target
is: there is always some chance that a request with little time comes."""

_LONGEST = 20

_MOST_DOUBLINGS = 10

_WITHDRAWN = "withdrawn: a durable task, which can run later"

_TIMER_S = 3600.0

log = structlog.get_logger()


class _Batch(NamedTuple):
    """Tasks to submit together.

    Attributes:
        tasks: The tasks, whose inputs are in memory.
        latest_ns: The furthest deadline that the policy is shown.
        weight: What policies may take each task to be worth: next to nothing, and more with each
            refusal.
    """

    tasks: Sequence[Waiting]
    latest_ns: int
    weight: float


class Feeder:
    """The background work of a driver.

    Args:
        driver: Runs the tasks.
        store: Stores the tasks.
        clock: The clock of their deadlines.
        may_run: Whether requests for a model are accepted at all.
        ended: Called with the number of each task once its outcome is on disk.

    Attributes:
        tasks: Tasks that have not ended, by number.
    """

    def __init__(
        self,
        driver: Driver,
        store: Operations,
        clock: TaskClock,
        may_run: Callable[[str], bool],
        ended: Callable[[int], None],
    ) -> None:
        """Starts with no tasks."""
        self.tasks: dict[int, Waiting] = {}
        self._driver = driver
        self._store = store
        self._clock = clock
        self._may_run = may_run
        self._told = ended
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes()
        self._room = Room()
        self._fed: dict[int, Waiting] = {}
        self._inputs = Inputs(store, self.look, self._postpone)
        self._ending_bytes = 0
        self._later = Later()
        self._timer: asyncio.TimerHandle | None = None
        self._paused_until_ns = 0
        self._looking = self._submitting = self._stopped = False

    # -- tasks

    def add(self, tasks: Sequence[Waiting]) -> None:
        """Takes on tasks that are on disk."""
        self._later.expect(tasks, self.tasks)
        self.tasks.update((task.seq, task) for task in tasks)
        if len(tasks) == 1:
            self._lanes.add(tasks[0])
        else:
            self._lanes.extend(tasks)
        self._driver.background = self if self.tasks else None
        self.look()

    def forget(self, seq: int) -> None:
        """Drops a task that has ended, and cancels its request if the driver has one."""
        task = self.tasks.pop(seq, None)
        if task is None:
            return
        if task.where is Where.LANE:
            self._lanes.remove(task)
        task.where = Where.GONE
        self._inputs.let_go(task)
        self._later.forget(task)
        if task.request_id is not None:
            self._driver.cancel(task.request_id)
        if not self.tasks:
            self._driver.background = None

    def stop(self) -> None:
        """Stops feeding and withdraws tasks that are still queued; those that run may end."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._withdraw()

    # -- scheduler.daemon.background.Background

    def make_way(self, arriving: Sequence[Submission]) -> None:
        """Withdraws queued tasks, because requests are about to be submitted."""
        if self._submitting:
            return
        now_ns = self._driver.clock_ns()
        for submission in arriving:
            budget_ns = submission.deadline_ns - now_ns
            targets = self._driver.core.targets.values()
            may_be_met = partial(can_be_met, submission.kind, budget_ns, targets)
            self._room.note(budget_ns, now_ns, may_be_met)
        self._withdraw()

    def look(self) -> None:
        """Looks for room once the current callback has finished."""
        if not self._looking and not self._stopped:
            self._looking = True
            self._loop.call_soon(self._feed)

    def _withdraw(self, only_stranded: bool = False) -> None:
        """Withdraws queued tasks; if `only_stranded`, those that no target that is up can run."""
        core = self._driver.core
        if core.queues:
            for request_id, task in list(self._fed.items()):
                # Each cancellation is an event, which may end or start other requests.
                found = core.ledger.records.get(request_id)
                if found is None or not found.queued:
                    continue
                if only_stranded and any(
                    target.up and target.usable(task.kind) for target in core.targets.values()
                ):
                    continue
                self._room.took(task.seq, 0, self._driver.clock_ns())
                self._driver.cancel(request_id, _WITHDRAWN)

    # -- feeding

    def _feed(self) -> None:
        self._looking = False
        if self._stopped or self._ending_bytes > ENDING_BYTES:
            return
        now_ns = self._driver.clock_ns()
        self._bring_back()
        if now_ns < self._paused_until_ns:
            return
        # A lost target's tasks are queued again, and would keep all others from being fed until
        # it returns.
        self._withdraw(only_stranded=True)
        core = self._driver.core
        for target in list(core.targets.values()):
            if not core.queues and target.is_open(now_ns):
                batch = self._batch_for(target, now_ns)
                if batch is not None:  # an event: queues may have changed
                    self._submit(batch)

    def _batch_for(self, target: TargetState, now_ns: int) -> _Batch | None:
        """The most urgent tasks that a target could run now.

        None if there are none, also while their inputs are being fetched.
        """
        closed_until_ns = self._room.closed_until_ns(target.spec.id)
        if now_ns < closed_until_ns:
            self._wake_after(closed_until_ns - now_ns)
            return None
        for kind, count in self._lanes.in_order():
            offers = target.usable(kind)
            if not offers or not self._may_run(kind.model):
                continue
            curve = target.curve(offers[0], kind)
            size = self._room.batch(curve, count, now_ns)
            waiting = [self.tasks[seq] for seq in self._lanes.first(kind, 2 * size)]
            insists = self._insists(waiting[0], now_ns)
            size = 1 if insists else self._room.batch(curve, fitting(waiting[:size]), now_ns)
            tasks, following = waiting[:size], waiting[size:]
            if any(task.inputs is None for task in tasks):
                self._inputs.fetch(tasks)
                return None
            if self._end_misfits(tasks):
                return None
            self._inputs.fetch_ahead(following)
            seqs = [task.seq for task in tasks]
            self._room.given(target.spec.id, curve, seqs, now_ns, insists)
            horizon_ns = max(HORIZON_NS, _LONGEST * likely_ns(curve, size))
            weight = LEAST_WEIGHT
            if insists:
                weight = 2.0 ** min(tasks[0].refusals - INSISTENT, _MOST_DOUBLINGS)
            return _Batch(tasks, now_ns + horizon_ns, weight)
        return None

    def _insists(self, task: Waiting, now_ns: int) -> bool:
        """Whether a task runs although it makes a request late, if only one time in many."""
        return task.refusals >= INSISTENT and self._room.longest_ns(now_ns) is not None

    def _end_misfits(self, tasks: list[Waiting]) -> bool:
        """Fails tasks whose inputs the model no longer accepts, because its files have changed.

        A batch has a single description of its tensors, so such a task cannot share one with others
        of its class.
        """
        card = self._driver.catalog.cards.get(tasks[0].kind.model)
        if card is None:
            return False
        fetched = [(task, task.inputs[0]) for task in tasks if task.inputs is not None]
        misfits = [(task, why) for task, specs in fetched if (why := misfit(card, specs))]
        for task, why in misfits:
            self._lanes.remove(task)
            self._end(task, Outcome.FAILED, f"the model has changed since: {why}")
        return bool(misfits)

    def _submit(self, batch: _Batch) -> None:
        ahead_ns = self._driver.clock_ns() - self._clock.boot_ns()
        submissions = []
        for task in batch.tasks:
            self._lanes.remove(task)
            task.where = Where.FED
            assert task.inputs is not None
            specs, body = task.inputs
            submissions.append(
                Submission(
                    self._exact(task.kind),
                    specs,
                    body,
                    min(task.due_ns + ahead_ns, batch.latest_ns),
                    LOWEST_PRIORITY,
                    batch.weight,
                    False,
                    partial(self._answered, task),
                )
            )
        self._submitting = True
        try:
            request_ids = self._driver.submit(submissions)
        finally:
            self._submitting = False
        for task, request_id in zip(batch.tasks, request_ids, strict=True):
            if task.where is Where.FED:
                task.request_id = request_id
                self._fed[request_id] = task

    def _exact(self, kind: RequestClass) -> RequestClass:
        """The class to submit a task as: a task has time, so its inputs are never shrunk."""
        card = self._driver.catalog.cards.get(kind.model)
        return kind._replace(exact=True) if card is not None and card.approximates else kind

    def _answered(self, task: Waiting, answer: Answer) -> None:
        """Handles the outcome of a task's request, which need not be the end of the task."""
        if task.request_id is not None:
            del self._fed[task.request_id]
            task.request_id = None
        self._room.took(task.seq, answer.timing_ns[2] or None, self._driver.clock_ns())
        if task.where is Where.GONE:
            return
        outcome = answer.outcome
        overdue = task.due_ns <= self._clock.boot_ns()
        if outcome is Outcome.FAILED:
            task.attempts += 1
            attempts = task.attempts
            self._store.write(lambda db: db.note_attempt(task.seq, attempts))
        if outcome is Outcome.COMPLETED:
            self._end(task, outcome, answer.reason, _header_of(task, answer), answer.outputs)
        elif outcome is Outcome.FAILED and task.attempts >= ATTEMPTS:
            self._end(task, outcome, f"failed {task.attempts} times: {answer.reason}")
        elif overdue:
            self._end(task, Outcome.EXPIRED, answer.reason)
        elif outcome is Outcome.CANCELLED:
            if task.refusals >= INSISTENT:  # admitted, but the policy let it wait
                task.refusals += 1
            task.where = Where.LANE
            self._lanes.add(task)
        else:
            self._refuse(task)

    # -- later

    def _postpone(self, task: Waiting) -> None:
        self._lanes.remove(task)
        task.where = Where.LATER
        self._later.put_off(task, self._clock.boot_ns())
        self._arm()

    def _refuse(self, task: Waiting, least_ns: int = 0) -> None:
        self._inputs.let_go(task)
        task.where = Where.LATER
        self._later.refuse(task, self._clock.boot_ns(), least_ns)
        self._arm()

    def _bring_back(self) -> None:
        """Expires overdue tasks, and moves postponed ones back to their lanes."""
        now_ns = self._clock.boot_ns()
        for seq in self._later.due(now_ns):
            task = self.tasks.get(seq)
            if task is None or task.where not in (Where.LANE, Where.LATER):
                continue
            if task.due_ns <= now_ns:
                if task.where is Where.LANE:
                    self._lanes.remove(task)
                self._end(task, Outcome.EXPIRED, "the deadline passed before there was room")
            elif task.where is Where.LATER:
                task.where = Where.LANE
                self._lanes.add(task)
        self._arm()

    def _arm(self) -> None:
        next_ns = self._later.next_ns()
        if next_ns is not None:
            self._wake_after(next_ns - self._clock.boot_ns())

    def _wake_after(self, ns: int) -> None:
        delay_s = min(max(ns / 1e9, 0.001), _TIMER_S)
        at_s = self._loop.time() + delay_s
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.look()

    # -- ends

    def _end(
        self,
        task: Waiting,
        outcome: Outcome,
        reason: str,
        header: dict[str, Any] | None = None,
        outputs: tuple[Any, Any] | None = None,
    ) -> None:
        task.where = Where.ENDING
        self._inputs.let_go(task)
        body = outputs[1] if outputs is not None else None
        size = len(body) if body is not None else 0
        self._ending_bytes += size
        reason = reason[:LONGEST_REASON]
        ended = Ended(task.seq, outcome, reason, self._clock.now_ms(), header, body)
        self._store.write(lambda db: db.end(ended), partial(self._written, task, outcome, size))

    def _written(
        self, task: Waiting, outcome: Outcome, size: int, found: bool | LaxityError
    ) -> None:
        self._ending_bytes -= size
        if task.where is Where.GONE:
            return
        if isinstance(found, LaxityError):
            log.error("a task's outcome could not be stored; it runs again", error=str(found))
            self._paused_until_ns = self._driver.clock_ns() + DISK_DELAY_NS
            self._refuse(task, DISK_DELAY_NS)
            return
        if outcome is Outcome.COMPLETED:
            self._later.start_over(task.kind, self._clock.boot_ns())
        self.forget(task.seq)
        self._told(task.seq)
        self.look()


def _header_of(task: Waiting, answer: Answer) -> dict[str, Any]:
    """The header of the `result` message for a task."""
    header = answer.header()
    if task.has_batch:
        header["out"] = [[name, dtype, [1, *shape]] for name, dtype, shape in header["out"]]
    return header
