"""A daemon's journal: read it, replay it through the core, play its requests again.

A folder holds the files of one or more runs; a run is the life of one scheduler. `arrivals` and
`targets` work from any file, because each header holds the policy, limits and targets of its time.
`verify` has to begin with the first file of a run, since a header does not hold what the policy and
the latency curves have learned. Where that file is gone (the journal is bounded; see the daemon's
`journal.max_mb`), or events are missing, it says how far it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policies import make_policy
from replay.journal_files import (
    JournalFile,
    Note,
    journal_runs,
    steps_of,
    warn,
)
from replay.simulator import Arrival
from scheduler.core.commands import Command, Dispatch, Finish
from scheduler.core.errors import PolicyFailed
from scheduler.core.events import (
    Event,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetReport,
    TargetUp,
    TargetWithdrew,
)
from scheduler.core.policy import Policy
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import TargetState
from scheduler.journal_format import Entry, Gap, JournalledPolicy, fingerprint

MakePolicy = Callable[..., Policy]
"""Makes a policy from its name and its options as keywords."""

_SHOWN = 300
_STORY = 30

# -- reading


def read_journal(path: Path | str, note: Note = warn) -> Iterator[tuple[int, Event | Command]]:
    """Each event, followed by the commands that the scheduler answered it with.

    The policy of a `PolicySwapped` is a `JournalledPolicy`: its name and options.

    Args:
        path: A folder, or one file.
        note: Called with a text for truncated files and missing events, which do not stop the
            reading.

    Yields:
        The time on the scheduler's clock, in ns, and the event or command.

    Raises:
        JournalError: A file is not a journal, or one of its records is damaged.
    """
    for _, step in _steps(path, note):
        if isinstance(step, Entry):
            yield step.at_ns, step.event
            for command in step.commands:
                yield step.at_ns, command


def read_on_one_clock(
    path: Path | str, note: Note = warn, whole: bool = True
) -> Iterator[tuple[int, Event | Command | Gap]]:
    """As `read_journal`, but in wall-clock time, so that runs follow each other.

    Time never goes back. Missing events give a `Gap`.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        whole: As in `arrivals`.

    Raises:
        JournalError: As in `read_journal`.
    """
    for at_ns, step in _steps(path, note, whole):
        if isinstance(step, Gap):
            yield at_ns, step
            continue
        yield at_ns, step.event
        for command in step.commands:
            yield at_ns, command


def _steps(path: Path | str, note: Note, whole: bool = True) -> Iterator[tuple[int, Entry | Gap]]:
    """Each step with its wall-clock time; where the clock was set back, the time stands still."""
    latest_ns = 0
    for run in journal_runs(path, note, whole):
        head = run[0].header
        for _, step in steps_of(run, note, whole):
            latest_ns = max(latest_ns, head.wall_ns + step.at_ns - head.at_ns)
            yield latest_ns, step


def arrivals(path: Path | str, note: Note = warn, whole: bool = True) -> Iterator[Arrival]:
    """The requests of a journal, to be played again; time 0 is the first request.

    Runs follow each other in wall-clock time. A request's budget is what was left when the
    scheduler received it. Cancelled requests are played like the others.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        whole: Whether damage is an error. If not, the damaged part is skipped with a note: a file
            whose header can't be read, or the rest of a file after an unreadable record.

    Raises:
        JournalError: As in `read_journal`; or no file can be read.
    """
    start_ns: int | None = None
    for at_ns, entry in _steps(path, note, whole):
        if isinstance(entry, Gap) or not isinstance(entry.event, Submitted):
            continue
        start_ns = at_ns if start_ns is None else start_ns
        for request in entry.event.requests:
            yield Arrival(
                at_ns - start_ns,
                request.kind,
                max(0, request.deadline_ns - entry.at_ns),
                request.priority,
                request.weight,
                request.accept_late,
                request.size_bytes,
            )


def targets(path: Path | str, note: Note = warn, whole: bool = True) -> list[TargetSpec]:
    """Every target of a journal in its last state, with an offer of each model it ever offered.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        whole: As in `arrivals`.

    Raises:
        JournalError: As in `read_journal`.
    """
    states: dict[str, TargetState] = {}

    def up(spec: TargetSpec) -> None:
        states[spec.id] = TargetState(spec)
        states[spec.id].add_offers(spec.offers)

    for run in journal_runs(path, note, whole):
        for target in run[0].header.targets:
            up(target.spec)
        for file, step in steps_of(run, note, whole):
            match step:
                case Gap(count=0):  # the next file's header has the state of the targets by then
                    for target in file.header.targets:
                        up(target.spec)
                case Entry(event=TargetUp(spec)):
                    up(spec)
                case Entry(event=TargetReport(target_id, offers)) if target_id in states:
                    states[target_id].add_offers(offers)
                case Entry(event=TargetWithdrew(target_id, variants)) if target_id in states:
                    _replace(states[target_id], variants)
                case Entry(event=TargetChanged(spec)) if spec.id in states:
                    states[spec.id].change(spec, 0)
    return [_with_offers(state) for state in states.values()]


def _replace(state: TargetState, withdrawn: Iterable[tuple[str, str]]) -> None:
    """Removes withdrawn variants, but none that is the last of its model: requests ask for it."""
    for model, variant in withdrawn:
        if any(offer.variant != variant for offer in state.offers.get(model, ())):
            state.withdraw([(model, variant)])


def _with_offers(state: TargetState) -> TargetSpec:
    offers = tuple(offer for offers in state.offers.values() for offer in offers)
    return replace(state.spec, offers=offers)


# -- verifying


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """Whether the core still gives the commands that it gave in one run.

    Attributes:
        run: The run's name.
        files: Number of its files found.
        events: Number of events replayed.
        commands: Number of commands that were the same.
        requests: Number of requests submitted in the replayed events.
        difference: The first difference, with its story; None if there is none.
        unverified: Why part of the run was not replayed; None if all of it was.
    """

    run: str
    files: int
    events: int
    commands: int
    requests: int
    difference: str | None
    unverified: str | None


def verify(path: Path | str, note: Note = warn, make: MakePolicy = make_policy) -> list[RunVerdict]:
    """Replays each run of a journal through the core, and compares the commands in every field.

    Args:
        path: A folder, or one file.
        note: As in `read_journal`.
        make: Makes the policies that the journal names. `scheduler.policy_loading.load_policy` also
            loads policies outside laxity's own table. It imports what a name says, so use it only
            for journals that you trust.

    Raises:
        JournalError: As in `read_journal`.
    """
    return [_Verification(run, note, make).verdict() for run in journal_runs(path, note)]


class _Different(Exception):
    """The core gives other commands than the journal."""


class _Unverifiable(Exception):
    """The run can't be replayed any further."""


class _Verification:
    """The replay of one run."""

    def __init__(self, run: list[JournalFile], note: Note, make: MakePolicy) -> None:
        self._run = run
        self._make = make
        self._note = note
        self._events = self._commands = self._requests = 0

    def verdict(self) -> RunVerdict:
        difference = unverified = None
        try:
            self._replay()
        except _Different as error:
            difference = str(error)
        except _Unverifiable as error:
            unverified = str(error)
        counts = self._events, self._commands, self._requests
        name = self._run[0].header.run
        return RunVerdict(name, len(self._run), *counts, difference, unverified)

    def _replay(self) -> None:
        head = self._run[0].header
        if head.part != 1:
            raise _Unverifiable(
                f"the run begins with file {head.part}; what the policy had learned in the files "
                "before it is not known"
            )
        core = Scheduler(self._made(head.policy), head.limits)
        for file, step in steps_of(self._run, self._note):
            if isinstance(step, Gap):
                raise _Unverifiable(
                    f"events are missing before record {file.number} of {file.path}"
                )
            self._step(core, file, step)

    def _step(self, core: Scheduler, file: JournalFile, step: Entry) -> None:
        event = step.event
        if isinstance(event, PolicySwapped) and isinstance(event.policy, JournalledPolicy):
            event = PolicySwapped(event.name, self._made(event.policy))
        failure: str | None = None
        try:
            commands = core.handle(event, step.at_ns)
        except PolicyFailed as error:
            commands, failure = error.commands, str(error)
        except Exception as error:  # a damaged event may hold anything
            told = f"can't take the event: {type(error).__name__}: {error}"
            raise _Different(_tale(core, file, step, told, ())) from None
        # Compare the bytes too: 1, 1.0 and True are equal.
        same = step.commands == tuple(commands)
        if not same or fingerprint(step.commands) != fingerprint(commands):
            said = "\n".join(f"    {each}" for each in commands) or "    nothing"
            raise _Different(_tale(core, file, step, f"says\n{said}", commands))
        if (failure is None) != (step.failure is None):
            told = f"says that the policy failed with {failure}; the journal: {step.failure}"
            raise _Different(_tale(core, file, step, told, commands))
        self._events += 1
        self._commands += len(commands)
        if isinstance(event, Submitted):
            self._requests += len(event.requests)

    def _made(self, policy: JournalledPolicy) -> Policy:
        try:
            return self._make(policy.name, **policy.options)
        except ValueError as error:
            told = f"the policy can't be made: {error}"
            if self._make is make_policy and (":" in policy.name or policy.name.endswith(".py")):
                told = (
                    f"policy {policy.name!r} is not one of laxity's own, and a journal's word is "
                    "not enough to run code; in Python, verify(..., make=load_policy) does"
                )
            raise _Unverifiable(told) from None


def _tale(core: Scheduler, file: JournalFile, step: Entry, told: str, commands: Any) -> str:
    """The first difference, and the story of the request it concerns."""
    was = "\n".join(f"    {each}" for each in step.commands) or "    nothing"
    text = (
        f"{file.path}, record {file.number}, at {step.at_ns} ns:\n"
        f"  at {str(step.event)[:_SHOWN]}\n  the journal says\n{was}\n  the core {told}"
    )
    request_id = _concerned(step.commands, commands)
    if request_id is not None:
        story = core.story(request_id)[-_STORY:]
        lines = "\n".join(f"    {entry.at_ns} {str(entry.what)[:_SHOWN]}" for entry in story)
        text += f"\n  the story of request {request_id} in the core:\n{lines}"
    return text


def _concerned(was: Any, now: Any) -> int | None:
    """The request of the first command that differs."""
    pairs = zip([*was, *[None] * len(now)], [*now, *[None] * len(was)], strict=True)
    for pair in pairs:
        if pair[0] != pair[1]:
            for command in pair:
                if isinstance(command, Finish):
                    return command.request_id
                if isinstance(command, Dispatch):
                    return command.request_ids[0]
    return None
