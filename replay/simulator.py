"""The scheduler's core and a policy on a virtual clock: what the daemon would do, without it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from scheduler.core.commands import Command, Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Event,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Policy
from scheduler.core.requests import DEFAULT_PRIORITY, Request, RequestClass
from scheduler.core.scheduler import Limits, Scheduler
from scheduler.core.targets import TargetSpec

ServiceTime = Callable[[Dispatch], int]
"""How long a batch really takes, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a workload.

    Attributes:
        at_ns: When it comes.
        kind: Its class.
        budget_ns: Time from arrival to deadline.
        priority: As in `Request`.
        weight: As in `Request`.
        accept_late: As in `Request`.
    """

    at_ns: int
    kind: RequestClass
    budget_ns: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    accept_late: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request of a simulation ended.

    Attributes:
        arrival: What came.
        finish: What the scheduler said of it.
        at_ns: When it said so.
    """

    arrival: Arrival
    finish: Finish
    at_ns: int

    @property
    def in_time(self) -> bool:
        """Whether the caller had a result within the deadline."""
        return self.finish.outcome is Outcome.COMPLETED


@dataclass(slots=True)
class _Worker:
    """A target's own queue: batches run one after another, as at a real one."""

    ahead: deque[Dispatch] = field(default_factory=deque)
    busy: int | None = None


class Simulator:
    """A discrete-event loop around one scheduler.

    A target runs its batches one after another. It skips those that nobody waits for any more,
    and those that it could only start when they would be late.

    Args:
        policy: The rule that decides.
        targets: What is up from the start.
        service_ns: The true time of each batch, which the policy can't see.
        limits: As in the daemon.
    """

    def __init__(
        self,
        policy: Policy,
        targets: Iterable[TargetSpec],
        service_ns: ServiceTime,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        """Brings the targets up at time 0."""
        self.scheduler = Scheduler(policy, limits)
        self._service_ns = service_ns
        self._agenda: list[tuple[int, int, Event]] = []
        self._order = 0
        self._wake_ns: int | None = None
        self._workers: dict[str, _Worker] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._next_id = 1
        for target in targets:
            self._workers[target.id] = _Worker()
            self.scheduler.handle(TargetUp(target), 0)

    def run(self, arrivals: Iterable[Arrival]) -> Iterator[Ending]:
        """Plays a workload, in order of time, to its end; the endings as they happen."""
        for arrival in arrivals:
            yield from self._until(arrival.at_ns)
            request = Request(
                self._next_id,
                arrival.kind,
                arrival.at_ns + arrival.budget_ns,
                arrival.priority,
                arrival.weight,
                accept_late=arrival.accept_late,
            )
            self._arrivals[request.id] = arrival
            self._next_id += 1
            yield from self._step(Submitted((request,)), arrival.at_ns)
        yield from self._until(None)

    def at(self, at_ns: int, event: Event) -> None:
        """Puts an event on the agenda, e.g. a target's death."""
        self._order += 1
        heapq.heappush(self._agenda, (at_ns, self._order, event))

    def _until(self, end_ns: int | None) -> Iterator[Ending]:
        while True:
            next_ns = self._agenda[0][0] if self._agenda else None
            woken = self._wake_ns is not None and (next_ns is None or self._wake_ns < next_ns)
            if woken:
                next_ns = self._wake_ns
            if next_ns is None or (end_ns is not None and next_ns > end_ns):
                return
            if woken:
                self._wake_ns = None
                yield from self._step(Woken(), next_ns)
            else:
                yield from self._step(heapq.heappop(self._agenda)[2], next_ns)

    def _step(self, event: Event, now_ns: int) -> Iterator[Ending]:
        match event:
            case BatchDone() | BatchFailed() if event.run_id not in self.scheduler.runs:
                return  # it was lost with its target
            case TargetDown():
                self._workers[event.target_id] = _Worker()
            case TargetUp():
                self._workers[event.target.id] = _Worker()
        commands = self.scheduler.handle(event, now_ns)
        for command in commands:
            if isinstance(command, Finish):
                yield Ending(self._arrivals.pop(command.request_id), command, now_ns)
            else:
                self._obey(command)
        for worker in self._workers.values():
            if worker.busy not in self.scheduler.runs:
                worker.busy = None
                self._begin(worker, now_ns)

    def _obey(self, command: Command) -> None:
        match command:
            case WakeAt(at_ns):
                self._wake_ns = at_ns
            case Dispatch():
                self._workers[command.target_id].ahead.append(command)

    def _begin(self, worker: _Worker, now_ns: int) -> None:
        """Lets an idle target start the next of its batches."""
        while worker.ahead and worker.busy is None:
            run = worker.ahead.popleft()
            if self.scheduler.runs[run.run_id].cancelled or now_ns > run.latest_start_ns:
                self.at(now_ns, BatchFailed(run.run_id, "skipped", started=False))
            else:
                worker.busy = run.run_id
                self.at(now_ns + self._service_ns(run), BatchDone(run.run_id))
