"""The scheduler's core and a policy on a virtual clock: what the daemon would do, without it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from scheduler.core.commands import Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Event,
    Submitted,
    TargetDown,
    TargetUp,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Policy
from scheduler.core.requests import DEFAULT_PRIORITY, Request, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from scheduler.core.values import value

if TYPE_CHECKING:
    from replay.workloads import Clients

NEVER_NS = 1 << 62
"""The time from which nothing can be played: 146 years."""

ServiceTime = Callable[[Dispatch, RequestClass], int]
"""The true service time, in nanoseconds, of a batch of requests of a class."""


@value(frozen=True, slots=True)
class Arrival:
    """A request of a workload.

    Attributes:
        at_ns: When it arrives.
        kind: Its class.
        budget_ns: Time from arrival to deadline.
        priority: As in `Request`.
        weight: As in `Request`.
        accept_late: As in `Request`.
        size_bytes: The size of its inputs, as in `Request`.
    """

    at_ns: int
    kind: RequestClass
    budget_ns: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    accept_late: bool = False
    size_bytes: int = 0


@value(frozen=True, slots=True)
class Ending:
    """How a request of a simulation ended.

    Attributes:
        arrival: The request as it arrived.
        finish: The scheduler's command that ended it.
        at_ns: When that command was given.
        run: The batch that gave the result; None without one.
    """

    arrival: Arrival
    finish: Finish
    at_ns: int
    run: Dispatch | None = None

    @property
    def in_time(self) -> bool:
        """Whether the caller had a result within the deadline."""
        return self.finish.outcome is Outcome.COMPLETED


class World(Protocol):
    """How time and distance affect batches, which the policy can't see."""

    def width(self, target_id: str) -> int:
        """The number of batches a target runs at once."""

    def is_far(self, target_id: str) -> bool:
        """Whether batches need time to travel to the target and back."""

    def lands_ns(self, target_id: str, size_bytes: int, sent_ns: int) -> int:
        """When a batch of this size, sent now, arrives at a far target."""

    def ends_ns(self, target_id: str, begun_ns: int, service_ns: int) -> int:
        """When a batch ends that starts at `begun_ns` and takes `service_ns` by itself."""

    def heard_ns(self, target_id: str, ended_ns: int) -> int:
        """When the results of a batch are back from a far target."""

    def handover_ns(self, target_id: str) -> int:
        """How long an idle target takes to begin a batch that has just arrived."""

    def submit_ns(self, target_id: str) -> int:
        """How much each submission delays what runs at a target on this box."""


OnRun = Callable[[Dispatch, RequestClass, int, int], None]
"""Called when a target begins a batch: the batch, its class, its start and its end."""

OnLook = Callable[[Scheduler, int], int]
"""Looks at the scheduler before the first event after a given moment; returns the next moment."""


@value(frozen=True, slots=True)
class _Landed:
    """A batch has arrived at a far target."""

    run: Dispatch


@value(frozen=True, slots=True)
class _Freed:
    """A far target has finished a batch, whose results are on their way back."""

    worker: _Worker
    run_id: int


@dataclass(slots=True, eq=False)
class _Worker:
    """A target's own queue: batches begin in order, up to `width` at once."""

    target_id: str
    width: int
    far: bool
    handover_ns: int = 0
    ahead: deque[Dispatch] = field(default_factory=deque)
    busy: set[int] = field(default_factory=set)
    submit_ns: int = 0
    owed_ns: int = 0


class Simulator:
    """A discrete-event loop around one scheduler.

    A target runs its batches one after another, or as many at once as the world says. It skips
    batches that nobody waits for any more, and batches whose latest start has passed. Nothing is
    kept of a request that has ended.

    Args:
        policy: The policy that decides.
        targets: The targets that are up from the start.
        service_ns: The true service time of each batch, which the policy can't see.
        limits: As in the daemon.
        world: Changes these times; None leaves them as they are, with every target on this box.
        on_run: Called for every batch that starts.
        at_once: Whether requests that arrive at the same time are submitted in one event, as in a
            daemon that reads them together; otherwise each is submitted alone.
        on_look: Looks at the scheduler from time to time, first after moment 0.

    Attributes:
        scheduler: The core that is driven.
    """

    def __init__(
        self,
        policy: Policy,
        targets: Iterable[TargetSpec],
        service_ns: ServiceTime,
        limits: Limits = Limits(),  # noqa: B008
        *,
        world: World | None = None,
        on_run: OnRun | None = None,
        at_once: bool = False,
        on_look: OnLook | None = None,
    ) -> None:
        """Brings the targets up at time 0."""
        self.scheduler = Scheduler(policy, limits)
        self._service_ns = service_ns
        self._world = world
        self._on_run = on_run
        self._at_once = at_once
        self._on_look: OnLook = on_look or _look_away
        self._look_ns = 0
        self._agenda: list[tuple[int, int, Event | _Landed | _Freed]] = []
        self._order = 0
        self._wake_ns = NEVER_NS
        self._workers: dict[str, _Worker] = {}
        self._disturbed: list[_Worker] = []
        self._arrivals: dict[int, Arrival] = {}
        self._runs: dict[int, Dispatch] = {}
        self._next_id = 1
        for target in targets:
            self._renew(target.id)
            self.scheduler.handle(TargetUp(target), 0)

    @property
    def headway(self) -> tuple[int, int]:
        """How many requests have arrived, and how many of them have not ended."""
        return self._next_id - 1, len(self._arrivals)

    def run(self, arrivals: Iterable[Arrival]) -> Iterator[Ending]:
        """Plays a workload, which is in order of time, to its end; yields the endings in order.

        Raises:
            OverflowError: A request, or its deadline, is 146 years after the start or later.
        """
        for at_ns, together in (_together if self._at_once else _singly)(arrivals):
            if at_ns >= NEVER_NS:
                raise OverflowError(f"a request {_years(at_ns)} after the start")
            while self._next_ns() <= at_ns:
                yield from self._play_next()
            yield from self._submit(together, at_ns)
        while self._next_ns() < NEVER_NS:
            yield from self._play_next()

    def serve(self, clients: Clients) -> Iterator[Ending]:
        """As `run`, for clients that must hear of one answer before they send the next request."""
        while True:
            due_ns, next_ns = clients.next_ns(), self._next_ns()
            if due_ns is not None and due_ns < next_ns:
                endings = self._submit((next(clients),), due_ns)
            elif next_ns < NEVER_NS:
                endings = self._play_next()
            else:
                return
            for ending in endings:
                clients.answered(ending.at_ns)
                yield ending

    def _submit(self, together: Iterable[Arrival], now_ns: int) -> list[Ending]:
        """Submits requests in one event, which delays the batches that share a core with it."""
        for worker in self._disturbed:
            if worker.busy:
                worker.owed_ns += worker.submit_ns
        return self._tell(Submitted(tuple([self._request(each) for each in together])), now_ns)

    def _request(self, arrival: Arrival) -> Request:
        deadline_ns = arrival.at_ns + arrival.budget_ns
        if deadline_ns >= NEVER_NS:
            raise OverflowError(f"a deadline {_years(deadline_ns)} after the start")
        request_id = self._next_id
        self._next_id = request_id + 1
        self._arrivals[request_id] = arrival
        return Request(
            request_id,
            arrival.kind,
            deadline_ns,
            arrival.priority,
            arrival.weight,
            arrival.size_bytes,
            arrival.accept_late,
        )

    def at(self, at_ns: int, event: Event) -> None:
        """Schedules an event, e.g. a target's death."""
        self._push(at_ns, event)

    def _push(self, at_ns: int, event: Event | _Landed | _Freed) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_ns, self._order, event))

    def _next_ns(self) -> int:
        """When the next event is due, arrivals aside."""
        agenda, wake_ns = self._agenda, self._wake_ns
        return agenda[0][0] if agenda and agenda[0][0] <= wake_ns else wake_ns

    def _play_next(self) -> list[Ending]:
        """Plays the next event; the agenda goes before a wake-up at the same time."""
        agenda, wake_ns = self._agenda, self._wake_ns
        if agenda and agenda[0][0] <= wake_ns:
            at_ns, _, event = heapq.heappop(agenda)
            return self._happen(event, at_ns)
        self._wake_ns = NEVER_NS
        return self._tell(Woken(), wake_ns)

    def _happen(self, event: Event | _Landed | _Freed, now_ns: int) -> list[Ending]:
        """Plays one item of the agenda."""
        match event:
            case BatchDone(run_id) | BatchFailed(run_id):
                run = self._runs.pop(run_id, None)
                if run is None:
                    return []  # the batch was lost with its target
                worker = self._workers[run.target_id]
                if worker.owed_ns and run_id in worker.busy:
                    self._runs[run_id] = run
                    self._push(now_ns + worker.owed_ns, event)
                    worker.owed_ns = 0
                    return []
                worker.busy.discard(run_id)
                endings = self._tell(event, now_ns, run)
                self._begin(worker, now_ns)
                return endings
            case _Landed(run):
                if run.run_id in self._runs:
                    worker = self._workers[run.target_id]
                    worker.ahead.append(run)
                    self._begin(worker, now_ns, worker.handover_ns)
                return []
            case _Freed(worker, run_id):
                worker.busy.discard(run_id)
                self._begin(worker, now_ns)
                return []
            case TargetDown():
                self._renew(event.target_id)
            case TargetUp():
                self._renew(event.target.id)
        return self._tell(event, now_ns)

    def _renew(self, target_id: str) -> None:
        """Gives a target a fresh worker without batches, in place of any earlier one."""
        for run_id in [r.run_id for r in self._runs.values() if r.target_id == target_id]:
            del self._runs[run_id]
        former, world = self._workers.get(target_id), self._world
        if former is not None:
            former.ahead.clear()  # a batch it still runs may end, but no other follows
        width, far = (world.width(target_id), world.is_far(target_id)) if world else (1, False)
        worker = self._workers[target_id] = _Worker(target_id, width, far)
        if world is not None:
            worker.handover_ns = world.handover_ns(target_id)
            if not far:
                worker.submit_ns = world.submit_ns(target_id)
        self._disturbed = [each for each in self._workers.values() if each.submit_ns]

    def _tell(self, event: Event, now_ns: int, run: Dispatch | None = None) -> list[Ending]:
        """Passes an event to the scheduler, and carries out its commands."""
        if now_ns > self._look_ns:
            self._look_ns = self._on_look(self.scheduler, now_ns)
        endings: list[Ending] = []
        for command in self.scheduler.handle(event, now_ns):
            if isinstance(command, Finish):
                arrival = self._arrivals.pop(command.request_id)
                served = run if command.run_id is not None else None
                endings.append(Ending(arrival, command, now_ns, served))
            elif isinstance(command, Dispatch):
                self._send(command, now_ns)
            elif isinstance(command, WakeAt):
                self._wake_ns = command.at_ns
        return endings

    def _send(self, run: Dispatch, now_ns: int) -> None:
        self._runs[run.run_id] = run
        worker = self._workers[run.target_id]
        if worker.far and self._world is not None:
            arrivals = self._arrivals
            size = sum(arrivals[i].size_bytes for i in run.request_ids if i in arrivals)
            form = self.scheduler.targets[run.target_id].spec.form_named(run.model, run.form)
            if form is not None:
                now_ns += int(form.byte_ns * size)
                size = math.ceil(form.share * size)
            self._push(self._world.lands_ns(run.target_id, size, now_ns), _Landed(run))
        else:
            worker.ahead.append(run)
            self._begin(worker, now_ns, worker.handover_ns)

    def _begin(self, worker: _Worker, now_ns: int, handover_ns: int = 0) -> None:
        """Starts a target's next batches, as far as it has room.

        Args:
            worker: The target.
            now_ns: The time now.
            handover_ns: How long the target takes to begin a batch that has just arrived.
        """
        while worker.ahead and len(worker.busy) < worker.width:
            run = worker.ahead.popleft()
            known = self.scheduler.runs[run.run_id]
            if now_ns > run.latest_start_ns or known.cancelled:
                self._skip(worker, run, now_ns)
                continue
            kind = known.requests[0].kind
            worker.busy.add(run.run_id)
            begun_ns = now_ns + handover_ns
            done_ns = heard_ns = begun_ns + self._service_ns(run, kind)
            if self._world is not None:
                done_ns = self._world.ends_ns(worker.target_id, begun_ns, done_ns - begun_ns)
                heard_ns = done_ns
                if worker.far:
                    self._push(done_ns, _Freed(worker, run.run_id))
                    heard_ns = self._world.heard_ns(worker.target_id, done_ns)
            self._push(heard_ns, BatchDone(run.run_id))
            if self._on_run is not None:
                self._on_run(run, kind, begun_ns, done_ns)

    def _skip(self, worker: _Worker, run: Dispatch, now_ns: int) -> None:
        heard_ns = now_ns
        if worker.far and self._world is not None:
            heard_ns = self._world.heard_ns(worker.target_id, now_ns)
        self._push(heard_ns, BatchFailed(run.run_id, "skipped", started=False))


def _look_away(_scheduler: Scheduler, _now_ns: int) -> int:
    return NEVER_NS


def _years(ns: int) -> str:
    return f"{float(min(ns, 10**300)) / 31_556_952e9:,.4g} years"


def _singly(arrivals: Iterable[Arrival]) -> Iterator[tuple[int, Iterable[Arrival]]]:
    for arrival in arrivals:
        yield arrival.at_ns, (arrival,)


def _together(arrivals: Iterable[Arrival]) -> Iterator[tuple[int, Iterable[Arrival]]]:
    yield from groupby(arrivals, key=attrgetter("at_ns"))
