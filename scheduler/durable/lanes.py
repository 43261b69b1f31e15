"""Waiting tasks in memory, by class and in the order in which they should run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from scheduler.core.requests import RequestClass
from scheduler.durable.records import KeptTask, Specs
from scheduler.wire import Body

_Entry = tuple[int, int, int]
"""Priority, deadline, number."""


class Where(Enum):
    """Where a task in memory is."""

    LANE = auto()
    """It waits in a lane for room."""
    LATER = auto()
    """It waits for its backoff to end."""
    FED = auto()
    """The driver has it."""
    ENDING = auto()
    """It has ended, and its outcome is being written to disk."""
    GONE = auto()
    """Its outcome is on disk."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A task that has not ended. Its tensors are in memory only if it will run soon.

    Attributes:
        seq: The task's number.
        kind: The class of its requests.
        has_batch: Whether the answer has a batch dimension of 1.
        priority: Lower runs first.
        due_ns: Deadline, on the clock of `TaskClock.boot_ns`.
        bytes: Size of its input tensors.
        attempts: How often it ran and failed.
        delays: How often in a row it was put off.
        refusals: How often in a row the driver refused it.
        where: Where it is.
        request_id: The driver's id for it while it is fed.
        inputs: Its input tensors, while they are in memory.
    """

    seq: int
    kind: RequestClass
    has_batch: bool
    priority: int
    due_ns: int
    bytes: int
    attempts: int = 0
    delays: int = 0
    refusals: int = 0
    where: Where = Where.LANE
    request_id: int | None = None
    inputs: tuple[Specs, Body] | None = None


class Lanes:
    """The tasks that wait for room: one sorted list per class."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lanes: dict[RequestClass, list[_Entry]] = {}

    def add(self, task: Waiting) -> None:
        """Adds a task."""
        insort(self._lanes.setdefault(task.kind, []), _entry(task))

    def extend(self, tasks: Iterable[Waiting]) -> None:
        """Adds many tasks."""
        for task in tasks:
            self._lanes.setdefault(task.kind, []).append(_entry(task))
        for lane in self._lanes.values():
            lane.sort()

    def remove(self, task: Waiting) -> None:
        """Removes a task, which must be here."""
        lane = self._lanes[task.kind]
        del lane[bisect_left(lane, _entry(task))]
        if not lane:
            del self._lanes[task.kind]

    def in_order(self) -> Iterator[tuple[RequestClass, int]]:
        """Each class and how many of its tasks wait, the class of the most urgent task first."""
        for kind in sorted(self._lanes, key=lambda kind: self._lanes[kind][0]):
            yield kind, len(self._lanes[kind])

    def first(self, kind: RequestClass, count: int) -> list[int]:
        """The numbers of the first tasks of a class."""
        return [seq for _, _, seq in self._lanes.get(kind, ())[:count]]


def _entry(task: Waiting) -> _Entry:
    return task.priority, task.due_ns, task.seq


def waiting_from(kept: KeptTask, due_ns: int) -> Waiting:
    """The in-memory form of a stored task."""
    return Waiting(
        kept.seq, kept.kind, kept.has_batch, kept.priority, due_ns, kept.bytes, kept.attempts
    )
