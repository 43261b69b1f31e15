"""Waiting tasks in memory, by class and in the order in which they are to run."""

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
    """Where a task is that has not ended."""

    LANE = auto()
    """It waits for room."""
    LATER = auto()
    """It waits for its time to be tried again."""
    FED = auto()
    """The driver has it."""
    ENDING = auto()
    """It has ended, which is being written to disk."""
    GONE = auto()
    """Its end is on disk."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A task that has not ended, without its tensors unless they are wanted soon.

    Attributes:
        seq: Its number.
        kind: Its class.
        has_batch: Whether the answer has a batch dimension of 1.
        priority: Which goes first.
        due_ns: Its deadline, on the clock of `TaskClock.boot_ns`.
        bytes: Of its tensors.
        attempts: How often it was run and failed.
        refusals: How often in a row it was not run.
        where: Where it is.
        request_id: What the driver calls it while it is fed.
        inputs: Its tensors, while they are in memory.
    """

    seq: int
    kind: RequestClass
    has_batch: bool
    priority: int
    due_ns: int
    bytes: int
    attempts: int = 0
    refusals: int = 0
    where: Where = Where.LANE
    request_id: int | None = None
    inputs: tuple[Specs, Body] | None = None


class Lanes:
    """The tasks that wait for room: one sorted list for each class."""

    def __init__(self) -> None:
        """Empty."""
        self._lanes: dict[RequestClass, list[_Entry]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, task: Waiting) -> None:
        """Lets a task wait."""
        insort(self._lanes.setdefault(task.kind, []), _entry(task))

    def extend(self, tasks: Iterable[Waiting]) -> None:
        """Lets many tasks wait."""
        for task in tasks:
            self._lanes.setdefault(task.kind, []).append(_entry(task))
        for lane in self._lanes.values():
            lane.sort()

    def remove(self, task: Waiting) -> None:
        """Takes a task out that waits here."""
        lane = self._lanes[task.kind]
        del lane[bisect_left(lane, _entry(task))]
        if not lane:
            del self._lanes[task.kind]

    def in_order(self) -> Iterator[tuple[RequestClass, int]]:
        """The classes with how many wait, that of the most urgent task first."""
        for kind in sorted(self._lanes, key=lambda kind: self._lanes[kind][0]):
            yield kind, len(self._lanes[kind])

    def first(self, kind: RequestClass, count: int) -> list[int]:
        """The numbers of the first tasks of a class."""
        return [seq for _, _, seq in self._lanes.get(kind, ())[:count]]


def _entry(task: Waiting) -> _Entry:
    return task.priority, task.due_ns, task.seq


def waiting_from(kept: KeptTask, due_ns: int) -> Waiting:
    """A task as it waits in memory."""
    return Waiting(
        kept.seq, kept.kind, kept.has_batch, kept.priority, due_ns, kept.bytes, kept.attempts
    )
