"""The input tensors of tasks that are about to run, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import structlog

from scheduler.durable.lanes import Waiting, Where
from scheduler.durable.records import Specs
from scheduler.errors import LaxityError

HELD_BYTES = 64_000_000
"""The most bytes of the inputs of a batch, and of those fetched ahead, unless one task has more."""

log = structlog.get_logger()


class Operations(Protocol):
    """The operations of a store."""

    def write(self, op: Any, then: Any = ...) -> None:
        """Queues a write; `then` is called when it is on disk."""

    def read(self, op: Any, then: Any) -> None:
        """Queues a look-up; `then` is called with what was found."""


class Inputs:
    """Fetches inputs from the store, and accounts for their memory.

    Args:
        store: Stores the inputs.
        fetched: Called after each fetch.
        unreadable: Called with each task whose inputs can't be read now.

    Attributes:
        held_bytes: Bytes of inputs in memory or being fetched.
    """

    def __init__(
        self,
        store: Operations,
        fetched: Callable[[], None],
        unreadable: Callable[[Waiting], None],
    ) -> None:
        """Starts with no inputs."""
        self.held_bytes = 0
        self._store = store
        self._tell = fetched
        self._unreadable = unreadable
        self._loading: set[int] = set()
        self._problem = ""

    def fetch(self, tasks: Sequence[Waiting]) -> None:
        """Fetches the inputs of tasks, as many as there is room for but at least one."""
        wanted: list[Waiting] = []
        for task in tasks:
            if task.inputs is not None or task.seq in self._loading:
                continue
            if wanted and self.held_bytes + task.bytes > HELD_BYTES:
                break
            self.held_bytes += task.bytes
            self._loading.add(task.seq)
            wanted.append(task)
        if wanted:
            seqs = [task.seq for task in wanted]
            self._store.read(lambda db: db.inputs(seqs), partial(self._fetched, wanted))

    def fetch_ahead(self, tasks: Sequence[Waiting]) -> None:
        """Prefetches the inputs of the tasks that follow, if at most half of the room is taken."""
        if self.held_bytes < HELD_BYTES // 2:
            self.fetch(tasks)

    def let_go(self, task: Waiting) -> None:
        """Frees the inputs of a task, if they are in memory."""
        if task.inputs is not None:
            task.inputs = None
            self.held_bytes -= task.bytes

    def _fetched(
        self, tasks: Sequence[Waiting], found: dict[int, tuple[Specs, bytes] | None] | LaxityError
    ) -> None:
        problem = str(found) if isinstance(found, LaxityError) else ""
        if problem not in ("", self._problem):  # once, not for each of the tasks that wait
            log.error("the inputs of tasks can't be read", error=problem)
        self._problem = problem
        for task in tasks:
            self._loading.discard(task.seq)
            inputs = found.get(task.seq) if isinstance(found, dict) else None
            if inputs is not None and task.where is Where.LANE:
                task.inputs = inputs[0], memoryview(inputs[1])
                continue
            self.held_bytes -= task.bytes
            if task.where is Where.LANE:
                if isinstance(found, dict) and task.seq in found:  # else it was just cancelled
                    why = "they are missing or damaged"
                    log.error("the inputs of a task can't be read", task=task.seq, error=why)
                self._unreadable(task)
        self._tell()


def fitting(tasks: Iterable[Waiting]) -> int:
    """How many of the first tasks have inputs that fit in memory together, at least one."""
    sizes = accumulate(task.bytes for task in tasks)
    return max(1, sum(size <= HELD_BYTES for size in sizes))
