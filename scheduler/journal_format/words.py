"""The vocabulary of a journal: what a file consists of, and what its numbers mean."""

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
    TargetWithdrew,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import View
from scheduler.core.requests import Request
from scheduler.core.target_specs import TargetSpec

MAGIC = b"laxity-journal 2\n"
"""The first bytes of a file; the number is the format's version."""

SUFFIX = ".journal"
"""The ending of the files' names."""

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
    TargetWithdrew,
)
"""The event types in the order of their numbers; new ones are added at the end."""

TEXT, CLASS, GAP, CLOSED, FIRST_EVENT = range(5)
"""The kinds of records."""

DISPATCH, FINISH, CANCEL_RUN, WAKE_AT = range(4)
"""The kinds of commands."""

OUTCOMES = tuple(Outcome)

MOST_NAMES = 4096
"""The most texts, and the most classes, that get a number; further ones are written out, because
reasons may contain figures."""

_USUAL = [field for field in fields(Request) if field.default is not MISSING]
REST_NAMES = tuple(field.name for field in _USUAL if field.name != "size_bytes")
REST_DEFAULTS = tuple(field.default for field in _USUAL if field.name != "size_bytes")
rest_of = attrgetter(*REST_NAMES)
"""The fields that most requests leave at their default; new fields of requests are included
automatically."""


@dataclass(frozen=True, slots=True)
class JournalledPolicy:
    """What a journal records of a policy.

    Attributes:
        name: Its name in the configuration.
        options: Its options.
    """

    name: str
    options: dict[str, Any]

    def decide(self, view: View) -> Iterable[Any]:
        """Always raises: make the policy from its name and options first."""
        raise TypeError(f"a journal has the name of {self.name!r} and not its rule")


@dataclass(frozen=True, slots=True)
class Target:
    """A target in a file's header.

    Attributes:
        spec: The spec that it announced, with everything it has offered since.
        up: Whether it took work.
    """

    spec: TargetSpec
    up: bool


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.

    Attributes:
        version: The version of laxity.
        run: Identifies one run of a scheduler, from its start to its end.
        part: Which file of the run this is, from 1.
        wall_ns: The wall-clock time, in nanoseconds since 1970.
        at_ns: The same moment on the scheduler's clock.
        last_id: The highest request id so far.
        policy: The policy at that moment.
        limits: The scheduler's limits.
        targets: The targets known at that moment.
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
        at_ns: When it was, on the scheduler's clock.
        event: The event.
        commands: The commands that followed.
        failure: What the policy did wrong; None if nothing.
    """

    at_ns: int
    event: Event
    commands: tuple[Command, ...]
    failure: str | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps that are missing, because the disk was too slow or failed.

    Attributes:
        at_ns: When the next step was.
        count: How many steps are missing.
    """

    at_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The regular end of a file."""


class FormatError(ValueError):
    """Bytes are not those of a journal; the message says what was expected."""


def pack(value: Any) -> bytes:
    """Encodes a record or a header."""
    packed: bytes = msgpack.packb(value, default=spelled)
    return packed


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """A policy's options as a journal stores them: unsupported values become text."""
    packed = msgpack.packb(options, default=repr, unicode_errors="backslashreplace")
    plain: dict[str, Any] = msgpack.unpackb(packed, strict_map_key=False)
    return plain


def spelled(value: Any) -> str:
    """Text for a value that msgpack can't encode, such as a date among a policy's options."""
    if isinstance(value, int):
        raise OverflowError(f"{value} has more than 64 bits")
    return repr(value)


_COMMAND_FIELDS = {
    kind: attrgetter(*[field.name for field in fields(kind)])
    for kind in (Dispatch, Finish, CancelRun, WakeAt)
}


def fingerprint(commands: Iterable[Command]) -> bytes:
    """Bytes that are equal only for equal commands, comparing all their fields."""
    return pack([(type(c).__name__, _COMMAND_FIELDS[type(c)](c)) for c in commands])
