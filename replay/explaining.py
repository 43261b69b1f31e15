"""Why a request ended as it did, read from the journal of the box that handled it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.journal_files import JournalError, JournalFile, Note, journal_runs, steps_of, warn
from scheduler.core.commands import CancelRun, Dispatch, Finish
from scheduler.core.events import (
    BY_CALLER,
    BatchDone,
    BatchFailed,
    Cancelled,
    PolicySwapped,
    Submitted,
    TargetDown,
    TargetUp,
)
from scheduler.core.requests import Request
from scheduler.core.story import Life
from scheduler.journal_format import Entry


@dataclass(frozen=True, slots=True)
class Brief:
    """How one request ended, in short.

    Attributes:
        id: The request's id within its run.
        wall_ns: Arrival time, in nanoseconds since 1970.
        model: The requested model.
        budget_ns: Time from arrival to the deadline.
        total_ns: Time from arrival to the end.
        outcome: How it ended.
        reason: The reason given to the caller.
    """

    id: int
    wall_ns: int
    model: str
    budget_ns: int
    total_ns: int
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a request.

    Attributes:
        after_ns: Time since the request arrived.
        what: What happened, in a word or two.
        text: The details.
    """

    after_ns: int
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Tale:
    """The life of one request.

    Attributes:
        run: The scheduler run that handled it.
        brief: How it ended; None if the journal does not show its end.
        steps: What happened, in order.
    """

    run: str
    brief: Brief | None
    steps: tuple[Step, ...]


def recent(
    path: Path | str,
    count: int,
    outcome: str | None = None,
    model: str | None = None,
    note: Note = warn,
    run: str | None = None,
) -> list[Brief]:
    """The requests of a run that ended last, newest first.

    Requests that arrived in one journal file and ended in the next are left out.

    Args:
        path: The journal's folder, or one file.
        count: The most requests to return.
        outcome: Keep only requests with this outcome.
        model: Keep only requests for this model.
        note: Called with a text for each truncated file and each gap in the events.
        run: The run; None for the latest.

    Raises:
        JournalError: A file is not a journal, a record of it is damaged, or the run is unknown.
    """
    found: list[Brief] = []
    files, _ = _run(path, run, note)
    for file in reversed(files):
        ended = [
            brief
            for brief in _briefs(file)
            if outcome in (None, brief.outcome) and model in (None, brief.model)
        ]
        found += reversed(ended)
        if len(found) >= count:
            break
    return found[:count]


def earlier_runs(path: Path | str, note: Note = warn) -> list[str]:
    """The names of the runs in a journal before the latest one, newest first.

    Raises:
        JournalError: A file is not a journal, or there is none.
    """
    return _run(path, None, note)[1]


def explain(path: Path | str, request_id: int, run: str | None = None, note: Note = warn) -> Tale:
    """The life of a request.

    Args:
        path: The journal's folder, or one file.
        request_id: Its id; ids begin at 1 in each run.
        run: The run to search; None for the latest.
        note: Called with a text for each truncated file and each gap in the events.

    Raises:
        JournalError: The journal has no such request, or is damaged.
    """
    files, others = _run(path, run, note)
    first = [index for index, file in enumerate(files) if file.header.last_id < request_id]
    name = files[0].header.run
    if not first:
        raise JournalError(
            str(path), None, f"request {request_id} of run {name} is in a file that was removed",
            f"an id above {files[0].header.last_id}",
        )  # fmt: skip
    told = _Telling(request_id)
    for file, step in steps_of(files[first[-1] :], note):
        if isinstance(step, Entry):
            told.hear(file, step)
        if told.brief is not None and not told.life.runs:
            break
    if told.request is None:
        expected = "an id of that run, as `laxity explain` lists them"
        if others:
            expected += f", or another run: {', '.join(others)}"
        raise JournalError(str(path), None, f"no request {request_id} in run {name}", expected)
    return Tale(name, told.brief, tuple(told.steps))


def _run(path: Path | str, name: str | None, note: Note) -> tuple[list[JournalFile], list[str]]:
    """The files of a run, and the names of the other runs, newest first."""
    runs = {files[0].header.run: files for files in journal_runs(path, note, whole=False)}
    names = list(reversed(runs))
    if name is None and runs:
        name = names[0]
    if name not in runs:
        raise JournalError(str(path), None, f"no run {name}", f"one of {', '.join(names)}")
    return runs[name], [each for each in names if each != name]


def _briefs(file: JournalFile) -> Iterator[Brief]:
    came: dict[int, tuple[int, Request]] = {}
    for step in file:
        if not isinstance(step, Entry):
            continue
        if isinstance(step.event, Submitted):
            came.update((request.id, (step.at_ns, request)) for request in step.event.requests)
        for command in step.commands:
            if isinstance(command, Finish) and command.request_id in came:
                at_ns, request = came.pop(command.request_id)
                yield _brief(file, at_ns, request, step.at_ns, command)


def _brief(file: JournalFile, at_ns: int, request: Request, end_ns: int, end: Finish) -> Brief:
    return Brief(
        request.id,
        file.header.wall_ns + at_ns - file.header.at_ns,
        request.kind.model,
        request.deadline_ns - at_ns,
        end_ns - at_ns,
        end.outcome.value,
        end.reason,
    )


class _Telling:
    """Picks the steps that concern one request out of a journal, and describes them."""

    def __init__(self, request_id: int) -> None:
        self.request: Request | None = None
        self.brief: Brief | None = None
        self.life = Life(request_id)
        self.steps: list[Step] = []
        self._id = request_id
        self._came_ns = 0
        self._policy = ""

    def hear(self, file: JournalFile, entry: Entry) -> None:
        if isinstance(entry.event, PolicySwapped):
            self._policy = entry.event.name
        known = len(self.steps)
        for what in (entry.event, *entry.commands):
            holds = self.life.holds(what)
            if holds and (self.request is not None or isinstance(what, Submitted)):
                self._tell(file, entry.at_ns, what)
        if entry.failure is not None and len(self.steps) > known:
            self._say(entry.at_ns, "policy failed", entry.failure)

    def _tell(self, file: JournalFile, at_ns: int, what: Any) -> None:
        if isinstance(what, Submitted):
            self.request = next(each for each in what.requests if each.id == self._id)
            self._came_ns = at_ns
            policy = self._policy or file.header.policy.name
            self._say(at_ns, "came", _spelled(self.request, at_ns, len(what.requests), policy))
            return
        if isinstance(what, Finish) and self.request is not None:
            self.brief = _brief(file, self._came_ns, self.request, at_ns, what)
        self._say(at_ns, *_worded(what, self._id))

    def _say(self, at_ns: int, what: str, text: str) -> None:
        self.steps.append(Step(at_ns - self._came_ns, what, text))


def _spelled(request: Request, at_ns: int, together: int, policy: str) -> str:
    kind = request.kind
    facts = [
        kind.model if kind.variant is None else f"{kind.model}/{kind.variant}",
        f"{_ms(request.deadline_ns - at_ns)} ms to its deadline",
        f"priority {request.priority}",
        f"{request.size_bytes:,} bytes",
    ]
    if request.accept_late:
        facts.append("a late result is wanted")
    if together > 1:
        facts.append(f"one of {together} that came together")
    return f"{', '.join(facts)}; {policy} decides"


def _worded(what: Any, request_id: int) -> tuple[str, str]:
    """What happened, as a short label and a description."""
    match what:
        case Dispatch(run_id, target_id, _, variant, request_ids, _, reason):
            others = len(request_ids) - 1
            company = f"with {others} other{'s' * (others > 1)}" if others else "alone"
            return "sent", f"to {target_id} as {variant}, {company}, run {run_id}: {reason}"
        case BatchDone(run_id, errors):
            fault = errors.get(request_id)
            return "ran", f"run {run_id}" + (f": it failed: {fault}" if fault else "")
        case BatchFailed(run_id, reason, started):
            return "failed" if started else "not begun", f"run {run_id}: {reason}"
        case TargetDown(target_id, reason):
            return "lost", f"{target_id} is gone: {reason}"
        case TargetUp(target):
            return "lost", f"{target.id} came back, and what it ran is lost"
        case CancelRun(run_id):
            return "called off", f"run {run_id}: nobody waits for it any more"
        case Cancelled(_, reason):
            by_caller = reason == BY_CALLER
            return "cancelled", "its caller no longer waits" if by_caller else reason
        case Finish(_, outcome, reason, _, queue_ns, detail):
            return outcome.value, f"{reason}{_known(detail)} ({_ms(queue_ns)} ms in the queue)"
        case _:
            return type(what).__name__, str(what)


def _known(detail: Mapping[str, Any]) -> str:
    """The details of an outcome; the budgets that would suffice come with the smallest first."""
    facts = dict(detail)
    earliest_ms = sorted(facts.pop("earliest_budget_ms", {}).items(), key=lambda item: item[1])
    would_do = ", ".join(f"{_ms(ms * 1e6)} ms at {target}" for target, ms in earliest_ms)
    said = [f"; {key} {value}" for key, value in facts.items()]
    return "".join(said) + (f"; would do: {would_do}" if would_do else "")


def _ms(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.4g}"
