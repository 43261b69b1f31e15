"""What happened, so that it can be told why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    Submitted,
    TargetDown,
    TargetUp,
)
from scheduler.core.policy import Wake
from scheduler.core.values import sealed

What = Event | Command | Wake
"""What a story is made of; a policy's wish to wait is part of it, because it has a reason."""


@sealed(frozen=True, slots=True)
class StoryEntry:
    """One event, command or wish to wait, and when it was."""

    at_ns: int
    what: What


class Story:
    """The last events and commands, oldest first; older ones are forgotten."""

    def __init__(self, entries: int) -> None:
        """Remembers at most that many entries."""
        self._log: deque[tuple[int, What]] = deque(maxlen=entries)

    def add(self, at_ns: int, what: What) -> None:
        """Remembers an event, or a wish."""
        self._log.append((at_ns, what))

    def add_all(self, at_ns: int, commands: Iterable[Command]) -> None:
        """Remembers the commands of one moment."""
        self._log.extend([(at_ns, command) for command in commands])

    def of(self, request_id: int) -> list[StoryEntry]:
        """All remembered entries that concern a request."""
        life = Life(request_id)
        return [StoryEntry(at_ns, what) for at_ns, what in self._log if life.holds(what)]


class Life:
    """Follows one request through a log that is read from its submission on.

    Attributes:
        runs: Those that it is part of, and their targets.
    """

    def __init__(self, request_id: int) -> None:
        """Nothing has been read."""
        self._id = request_id
        self._waiting = False
        self.runs: dict[int, str] = {}

    def holds(self, what: What) -> bool:
        """Whether the next entry of the log concerns the request."""
        match what:
            case Submitted():
                mine = any(request.id == self._id for request in what.requests)
                self._waiting |= mine
                return mine
            case Cancelled() | Finish():
                self._waiting &= what.request_id != self._id
                return what.request_id == self._id
            case Dispatch() if self._id in what.request_ids:
                self.runs[what.run_id] = what.target_id
                self._waiting = False
                return True
            case BatchDone() | BatchFailed():
                return self._ended([what.run_id])
            case TargetDown():
                return self._lost(what.target_id)
            case TargetUp():
                return self._lost(what.target.id)
            case CancelRun():
                return what.run_id in self.runs
            case Wake():
                return self._waiting
            case _:
                return False

    def _lost(self, target_id: str) -> bool:
        return self._ended([run_id for run_id, at in self.runs.items() if at == target_id])

    def _ended(self, run_ids: list[int]) -> bool:
        mine = [run_id for run_id in run_ids if self.runs.pop(run_id, None)]
        self._waiting |= bool(mine) and not self.runs
        return bool(mine)
