"""What happened to a request and why: a log of events, commands and the policy's waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

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
"""What a story consists of. A policy's wish to wait is part of it, because it has a reason."""

_TOLD = (Submitted, BatchDone, Wake, BatchFailed, Cancelled, TargetUp, TargetDown)
"""The events and wishes that may concern a request. The others would only take memory, as would
a policy that another one has replaced."""


@sealed(frozen=True, slots=True)
class StoryEntry:
    """One event, command or wish to wait, and its time."""

    at_ns: int
    what: What


class Story:
    """The last events and commands, oldest first; older ones are forgotten."""

    def __init__(self, entries: int) -> None:
        """Starts empty; keeps at most that many entries."""
        self._log: deque[tuple[int, What]] = deque(maxlen=entries)

    def add(self, at_ns: int, what: What) -> None:
        """Adds an event or a wish, unless it concerns no request."""
        if not isinstance(what, _TOLD):
            return
        if isinstance(what, TargetUp):  # its offers have all that was measured of them
            what = replace(what, target=replace(what.target, offers=()))
        self._log.append((at_ns, what))

    def add_all(self, at_ns: int, commands: Iterable[Command]) -> None:
        """Adds the commands of one moment."""
        self._log.extend([(at_ns, command) for command in commands])

    def of(self, request_id: int) -> list[StoryEntry]:
        """The remembered entries that concern a request."""
        life = Life(request_id)
        return [StoryEntry(at_ns, what) for at_ns, what in self._log if life.holds(what)]


class Life:
    """Follows one request through a log, read from the request's submission on.

    Attributes:
        runs: The target of each run that the request is part of, by run id.
    """

    def __init__(self, request_id: int) -> None:
        """Starts before the first entry."""
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
