"""The tensors of the tasks that are about to run, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from scheduler.durable.lanes import Waiting, Where
from scheduler.durable.records import Specs
from scheduler.errors import LaxityError

HELD_BYTES = 64_000_000
"""What is fetched at most, unless a single batch takes more."""

log = structlog.get_logger()


class Operations(Protocol):
    """What is asked of a store."""

    def write(self, op: Any, then: Any = ...) -> None:
        """Has something written; `then` hears when it is on disk."""

    def read(self, op: Any, then: Any) -> None:
        """Has something looked up."""


class Inputs:
    """Fetches tensors from the store, and keeps account of them.

    Args:
        store: Has them.
        fetched: Called when some are there.
        unreadable: Told each task whose inputs can't be had now.

    Attributes:
        held_bytes: Those in memory or on their way there.
    """

    def __init__(
        self,
        store: Operations,
        fetched: Callable[[], None],
        unreadable: Callable[[Waiting], None],
    ) -> None:
        """Holds nothing."""
        self.held_bytes = 0
        self._store = store
        self._tell = fetched
        self._unreadable = unreadable
        self._loading: set[int] = set()

    def fetch(self, tasks: Sequence[Waiting]) -> None:
        """Has the inputs of tasks brought, as far as there is room; at least one of them."""
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
        """The same for tasks that come after, where there is plenty of room."""
        if self.held_bytes < HELD_BYTES // 2:
            self.fetch(tasks)

    def let_go(self, task: Waiting) -> None:
        """Frees the inputs of a task, where they are here."""
        if task.inputs is not None:
            task.inputs = None
            self.held_bytes -= task.bytes

    def _fetched(
        self, tasks: Sequence[Waiting], found: dict[int, tuple[Specs, bytes]] | LaxityError
    ) -> None:
        for task in tasks:
            self._loading.discard(task.seq)
            inputs = found.get(task.seq) if isinstance(found, dict) else None
            if inputs is not None and task.where is Where.LANE:
                task.inputs = inputs[0], memoryview(inputs[1])
                continue
            self.held_bytes -= task.bytes
            if task.where is Where.LANE:
                why = "they are gone" if isinstance(found, dict) else str(found)
                log.error("the inputs of a task can't be read", task=task.seq, error=why)
                self._unreadable(task)
        self._tell()
