"""What happened, so that it can be told why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish
from scheduler.core.events import BatchDone, BatchFailed, Cancelled, Event, Submitted


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One event or command, and when it was."""

    at_ns: int
    what: Event | Command


class Story:
    """The last events and commands, oldest first; older ones are forgotten."""

    def __init__(self, entries: int) -> None:
        """Remembers at most that many entries."""
        self._log: deque[tuple[int, Event | Command]] = deque(maxlen=entries)

    def add(self, at_ns: int, whats: Iterable[Event | Command]) -> None:
        """Remembers events or commands of one moment."""
        self._log.extend((at_ns, what) for what in whats)

    def of(self, request_id: int) -> list[StoryEntry]:
        """All remembered entries that concern a request."""
        runs: set[int] = set()
        entries = []
        for at_ns, what in self._log:
            if isinstance(what, Dispatch) and request_id in what.request_ids:
                runs.add(what.run_id)
            if _concerns(what, request_id, runs):
                entries.append(StoryEntry(at_ns, what))
        return entries


def _concerns(what: Event | Command, request_id: int, runs: set[int]) -> bool:
    match what:
        case Submitted():
            return any(request.id == request_id for request in what.requests)
        case Cancelled() | Finish():
            return what.request_id == request_id
        case Dispatch() | BatchDone() | BatchFailed() | CancelRun():
            return what.run_id in runs
        case _:
            return False
