"""The words of a journal: what a file is made of, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any

import msgpack

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import View
from scheduler.core.requests import Request
from scheduler.core.target_specs import TargetSpec

MAGIC = b"laxity-journal 2\n"
"""The first bytes of a file; the number is that of the format."""

EVENTS: tuple[type[Event], ...] = (
    Submitted,
    Cancelled,
    BatchDone,
    BatchFailed,
    TargetUp,
    TargetDown,
    TargetReport,
    PolicySwapped,
    Woken,
    TargetChanged,
)
"""In the order of their numbers: new ones are added at the end."""

TEXT, CLASS, GAP, CLOSED, FIRST_EVENT = range(5)
"""What a record is."""

DISPATCH, FINISH, CANCEL_RUN, WAKE_AT = range(4)
"""What a command is."""

OUTCOMES = tuple(Outcome)

MOST_NAMES = 4096
"""Texts and classes beyond so many are written out: reasons may hold figures."""

_USUAL = [field for field in fields(Request) if field.default is not MISSING]
REST_NAMES = tuple(field.name for field in _USUAL if field.name != "size_bytes")
REST_DEFAULTS = tuple(field.default for field in _USUAL if field.name != "size_bytes")
rest_of = attrgetter(*REST_NAMES)
"""What most requests leave as it is; whatever fields requests get, they are in here."""


@dataclass(frozen=True, slots=True)
class JournalledPolicy:
    """What a journal knows of a policy.

    Attributes:
        name: As in the configuration.
        options: The policy's own.
    """

    name: str
    options: dict[str, Any]

    def decide(self, view: View) -> Iterable[Any]:
        """Raises; make the policy by its name and options first."""
        raise TypeError(f"a journal has the name of {self.name!r} and not its rule")


@dataclass(frozen=True, slots=True)
class Target:
    """A target as a file's header has it.

    Attributes:
        spec: As it announced itself, with all that it has offered since.
        up: Whether it took work.
    """

    spec: TargetSpec
    up: bool


@dataclass(frozen=True, slots=True)
class Header:
    """What a file begins with.

    Attributes:
        version: Of laxity.
        run: Names the life of a scheduler, from its start to its end.
        part: Which file of the run this is, from 1.
        wall_ns: The time of day, in nanoseconds since 1970.
        at_ns: The same moment on the scheduler's clock.
        last_id: The highest id of a request so far.
        policy: Who decides at that moment.
        limits: What the scheduler holds at most.
        targets: What it knows of at that moment.
    """

    version: str
    run: str
    part: int
    wall_ns: int
    at_ns: int
    last_id: int
    policy: JournalledPolicy
    limits: Limits
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of the scheduler.

    Attributes:
        at_ns: When, on its clock.
        event: What it was told.
        commands: What it said.
        failure: What the policy did wrong meanwhile; None if nothing.
    """

    at_ns: int
    event: Event
    commands: tuple[Command, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps that are missing, because the disk was too slow or failed.

    Attributes:
        at_ns: When the next one was.
        count: How many.
    """

    at_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a file, as it should be."""


class FormatError(ValueError):
    """Bytes are not what a journal has; the message says what was expected."""


def pack(value: Any) -> bytes:
    """The bytes of a record or a header."""
    packed: bytes = msgpack.packb(value, default=spelled)
    return packed


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """A policy's options as a journal has them: what it can't hold is spelled out."""
    packed = msgpack.packb(options, default=repr, unicode_errors="backslashreplace")
    plain: dict[str, Any] = msgpack.unpackb(packed, strict_map_key=False)
    return plain


def spelled(value: Any) -> str:
    """What msgpack can't hold, such as a date among a policy's options."""
    if isinstance(value, int):
        raise OverflowError(f"{value} has more than 64 bits")
    return repr(value)


_COMMAND_FIELDS = {
    kind: attrgetter(*[field.name for field in fields(kind)])
    for kind in (Dispatch, Finish, CancelRun, WakeAt)
}


def fingerprint(commands: Iterable[Command]) -> bytes:
    """Bytes that are the same for the same commands alone, all of their fields included."""
    return pack([(type(c).__name__, _COMMAND_FIELDS[type(c)](c)) for c in commands])
