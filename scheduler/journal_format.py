"""What a journal looks like on disk: events and commands to bytes, and back. No files, no clock.

A file is `MAGIC`, a msgpack map (the header) and msgpack lists (the records). A record's first
item says what it is:

    [0, text]                    the next text; later ones name it by its number, from 0
    [1, model, variant, shapes]  the next class of requests, likewise
    [2, at_ns, count]            so many events are missing here
    [3]                          the file was closed; its run goes on in the next one, or ended
    [4 + n, since_ns, event, commands]              an event of the n-th type of `EVENTS`
    [4 + n, since_ns, event, commands, failure]     the same, and the policy failed at it

Times are relative to the event before, ids of requests to the highest so far: small numbers take
few bytes. Each file stands for itself: its header has the policy, the limits and the targets of
that moment, and nothing refers to another file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    TargetDown,
    TargetReport,
    TargetUp,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetSpec

MAGIC = b"laxity-journal 1\n"
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
)

_TEXT, _CLASS, _GAP, _CLOSED, _FIRST_EVENT = range(5)
_DISPATCH, _FINISH, _CANCEL_RUN, _WAKE_AT = range(4)
_OUTCOMES = tuple(Outcome)
_OUTCOME_NUMBERS = {outcome: number for number, outcome in enumerate(_OUTCOMES)}

_MOST_NAMES = 4096
"""Texts and classes beyond so many are written out: reasons may hold figures."""

_USUAL = [field for field in fields(Request) if field.default is not MISSING]
_REST_NAMES = tuple(field.name for field in _USUAL if field.name != "size_bytes")
_REST_DEFAULTS = tuple(field.default for field in _USUAL if field.name != "size_bytes")
_rest_of = attrgetter(*_REST_NAMES)


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


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=repr)
    return packed


# -- writing


def encode_header(header: Header) -> bytes:
    """The first bytes of a file."""
    named = {
        "version": header.version,
        "run": header.run,
        "part": header.part,
        "wall_ns": header.wall_ns,
        "at_ns": header.at_ns,
        "last_id": header.last_id,
        "policy": [header.policy.name, header.policy.options],
        "limits": _named_fields(header.limits),
        "targets": [[_plain_target(target.spec), target.up] for target in header.targets],
        "request": _REST_NAMES,
    }
    return MAGIC + _pack(named)


def _named_fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def _plain_offer(offer: Offer) -> dict[str, Any]:
    return {**_named_fields(offer), "latency_ns": dict(offer.latency_ns)}


def _plain_target(spec: TargetSpec) -> dict[str, Any]:
    return {**_named_fields(spec), "offers": [_plain_offer(offer) for offer in spec.offers]}


class Encoder:
    """Makes the records of one file.

    Args:
        at_ns: As in the header.
        last_id: As in the header.
    """

    def __init__(self, at_ns: int, last_id: int) -> None:
        """Has named nothing yet."""
        self.last_id = last_id
        self._at_ns = at_ns
        self._texts: dict[str, int] = {}
        self._classes: dict[RequestClass, int] = {}
        self._new: list[bytes] = []
        self._pack: Callable[[Any], bytes] = msgpack.Packer(default=repr).pack
        tellers: dict[type[Event], Callable[[Any], Any]] = {
            Submitted: self._submitted,
            Cancelled: self._cancelled,
            BatchDone: self._batch_done,
            BatchFailed: self._batch_failed,
            TargetUp: self._target_up,
            TargetDown: self._target_down,
            TargetReport: self._target_report,
            PolicySwapped: self._policy_swapped,
            Woken: self._woken,
        }
        self._events = {
            kind: (_FIRST_EVENT + number, tellers[kind]) for number, kind in enumerate(EVENTS)
        }
        self._commands: dict[type[Command], Callable[[Any], Any]] = {
            Dispatch: self._dispatch,
            Finish: self._finish,
            CancelRun: self._cancel_run,
            WakeAt: self._wake_at,
        }
        self._options: dict[str, Any] = {}

    def entry(
        self,
        at_ns: int,
        event: Event,
        commands: Sequence[Command],
        options: dict[str, Any],
        failure: str | None = None,
    ) -> bytes:
        """One step, with the names that it is the first to use.

        Args:
            at_ns: When; not before the one before.
            event: What happened.
            commands: What the scheduler said to it.
            options: Those of the policy, if the event is `PolicySwapped`.
            failure: What the policy did wrong.
        """
        number, tell = self._events[type(event)]
        since_ns, self._at_ns = at_ns - self._at_ns, at_ns
        self._options = options
        told = tell(event)
        ways = self._commands
        said = [ways[type(command)](command) for command in commands]
        if failure is None:
            record = self._pack((number, since_ns, told, said))
        else:
            record = self._pack((number, since_ns, told, said, failure))
        if not self._new:
            return record
        named = b"".join(self._new)
        self._new.clear()
        return named + record

    def gap(self, at_ns: int, count: int) -> bytes:
        """That steps are missing before what comes next."""
        return self._pack((_GAP, at_ns, count))

    def closed(self) -> bytes:
        """That the file is complete."""
        return self._pack((_CLOSED,))

    # -- names

    def _text(self, text: str) -> int | str:
        number = self._texts.get(text)
        if number is not None:
            return number
        number = len(self._texts)
        if number >= _MOST_NAMES:
            return text
        self._texts[text] = number
        self._new.append(self._pack((_TEXT, text)))
        return number

    def _class(self, kind: RequestClass) -> Any:
        number = self._classes.get(kind)
        if number is not None:
            return number
        number = len(self._classes)
        if number >= _MOST_NAMES or kind.alone is not None:
            return tuple(kind)
        self._classes[kind] = number
        self._new.append(self._pack((_CLASS, *kind[:3])))
        return number

    # -- events

    def _submitted(self, event: Submitted) -> Any:
        told: list[Any] = []
        last_id, at_ns, classes = self.last_id, self._at_ns, self._classes
        for request in event.requests:
            kind = classes.get(request.kind)
            if kind is None:
                kind = self._class(request.kind)
            budget_ns, rest = request.deadline_ns - at_ns, _rest_of(request)
            if rest == _REST_DEFAULTS:
                told.append((request.id - last_id, kind, budget_ns, request.size_bytes))
            else:
                told.append((request.id - last_id, kind, budget_ns, request.size_bytes, rest))
            last_id = request.id
        self.last_id = last_id
        return told

    def _cancelled(self, event: Cancelled) -> Any:
        return self.last_id - event.request_id

    def _batch_done(self, event: BatchDone) -> Any:
        if not event.errors:
            return event.run_id
        last_id = self.last_id
        return event.run_id, {last_id - i: error for i, error in event.errors.items()}

    def _batch_failed(self, event: BatchFailed) -> Any:
        return event.run_id, self._text(event.reason), event.started

    def _target_up(self, event: TargetUp) -> Any:
        return _plain_target(event.target)

    def _target_down(self, event: TargetDown) -> Any:
        return event.target_id, event.reason, event.returns_in_ns

    def _target_report(self, event: TargetReport) -> Any:
        return event.target_id, [_plain_offer(offer) for offer in event.offers]

    def _policy_swapped(self, event: PolicySwapped) -> Any:
        return event.name, self._options

    def _woken(self, _event: Woken) -> Any:
        return None

    # -- commands

    def _dispatch(self, command: Dispatch) -> Any:
        last_id, text = self.last_id, self._text
        return (
            _DISPATCH,
            command.run_id,
            text(command.target_id),
            text(command.model),
            text(command.variant),
            [last_id - i for i in command.request_ids],
            command.latest_start_ns - self._at_ns,
            text(command.reason),
        )

    def _finish(self, command: Finish) -> Any:
        told = (
            _FINISH,
            self.last_id - command.request_id,
            _OUTCOME_NUMBERS[command.outcome],
            self._text(command.reason),
            command.run_id,
            command.queue_ns,
        )
        return (*told, self._keyed(command.detail)) if command.detail else told

    def _cancel_run(self, command: CancelRun) -> Any:
        return _CANCEL_RUN, command.run_id

    def _wake_at(self, command: WakeAt) -> Any:
        return _WAKE_AT, command.at_ns - self._at_ns

    def _keyed(self, value: Any) -> Any:
        """A mapping with its keys as names, at every depth."""
        if isinstance(value, Mapping):
            return {self._text(key): self._keyed(item) for key, item in value.items()}
        return value


# -- reading

_BROKEN = (
    *(AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
)
"""What wrong values of right msgpack come to when something is made of them."""


def decode_header(value: Any) -> Header:
    """The header that follows `MAGIC`.

    Raises:
        FormatError: It is none.
    """
    try:
        if tuple(value["request"]) != _REST_NAMES:
            raise FormatError("requests with other fields than this version of laxity knows")
        name, options = value["policy"]
        return Header(
            version=_checked(value["version"], str),
            run=_checked(value["run"], str),
            part=_checked(value["part"], int),
            wall_ns=_checked(value["wall_ns"], int),
            at_ns=_checked(value["at_ns"], int),
            last_id=_checked(value["last_id"], int),
            policy=JournalledPolicy(_checked(name, str), dict(options)),
            limits=Limits(**value["limits"]),
            targets=tuple(Target(_target(spec), bool(up)) for spec, up in value["targets"]),
        )
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"no header of a journal: {type(error).__name__}: {error}") from None


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _offer(named: Any) -> Offer:
    latency_ns = {int(size): tuple(samples) for size, samples in named["latency_ns"].items()}
    return Offer(**{**_frozen(named), "latency_ns": latency_ns})


def _target(named: Any) -> TargetSpec:
    return TargetSpec(**{**_frozen(named), "offers": tuple(map(_offer, named["offers"]))})


def _frozen(named: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in named.items()}


class Decoder:
    """Reads the records of one file."""

    def __init__(self, header: Header) -> None:
        """Knows no names yet."""
        self._at_ns = header.at_ns
        self._last_id = header.last_id
        self._texts: list[str] = []
        self._classes: list[RequestClass] = []
        self._events: tuple[Callable[[Any], Event], ...] = (
            self._submitted,
            self._cancelled,
            self._batch_done,
            self._batch_failed,
            self._target_up,
            self._target_down,
            self._target_report,
            self._policy_swapped,
            self._woken,
        )
        self._commands: tuple[Callable[..., Command], ...] = (
            self._dispatch,
            self._finish,
            self._cancel_run,
            self._wake_at,
        )

    def record(self, record: Any) -> Entry | Gap | Closed | None:
        """What a record says; None for one that names something for later ones.

        Raises:
            FormatError: It says nothing that a journal has.
        """
        try:
            return self._record(record)
        except _BROKEN as error:
            raise FormatError(f"no record of a journal: {type(error).__name__}: {error}") from None

    def _record(self, record: Any) -> Entry | Gap | Closed | None:
        kind = _checked(_checked(record, list)[0], int)
        if kind >= _FIRST_EVENT:
            return self._entry(kind - _FIRST_EVENT, *record[1:])
        if kind == _TEXT:
            self._texts.append(_checked(record[1], str))
        elif kind == _CLASS:
            self._classes.append(self._named_class(*record[1:]))
        elif kind == _GAP:
            return Gap(_checked(record[1], int), _checked(record[2], int))
        elif kind == _CLOSED:
            return Closed()
        else:
            raise ValueError(f"records are of kind 0 or more, not {kind}")
        return None

    def _entry(
        self, number: int, since_ns: Any, told: Any, said: Any, failure: Any = None
    ) -> Entry:
        self._at_ns += _checked(since_ns, int)
        event = self._events[number](told)
        ways = self._commands
        commands = tuple([ways[_natural(item[0])](*item[1:]) for item in said])
        return Entry(self._at_ns, event, commands, failure and _checked(failure, str))

    # -- names

    def _text(self, value: Any) -> str:
        return self._texts[_natural(value)] if type(value) is int else _checked(value, str)

    def _class(self, value: Any) -> RequestClass:
        return self._classes[_natural(value)] if type(value) is int else self._named_class(*value)

    def _named_class(
        self, model: Any, variant: Any, shapes: Any, alone: Any = None
    ) -> RequestClass:
        sizes = tuple(tuple(_checked(size, int) for size in shape) for shape in shapes)
        name = None if variant is None else _checked(variant, str)
        return RequestClass(_checked(model, str), name, sizes, alone)

    def _id(self, back: Any) -> int:
        return self._last_id - int(_checked(back, int))

    # -- events

    def _submitted(self, told: Any) -> Submitted:
        return Submitted(tuple([self._request(*item) for item in told]))

    def _request(self, step: Any, kind: Any, budget_ns: Any, size: Any, rest: Any = ()) -> Request:
        self._last_id += _checked(step, int)
        deadline_ns = self._at_ns + _checked(budget_ns, int)
        more = dict(zip(_REST_NAMES, rest, strict=True)) if rest else {}
        return Request(
            self._last_id, self._class(kind), deadline_ns, size_bytes=_checked(size, int), **more
        )

    def _cancelled(self, told: Any) -> Cancelled:
        return Cancelled(self._id(told))

    def _batch_done(self, told: Any) -> BatchDone:
        if type(told) is int:
            return BatchDone(told)
        run_id, errors = told
        named = {self._id(back): _checked(error, str) for back, error in errors.items()}
        return BatchDone(_checked(run_id, int), named)

    def _batch_failed(self, told: Any) -> BatchFailed:
        run_id, reason, started = told
        return BatchFailed(_checked(run_id, int), self._text(reason), _checked(started, bool))

    def _target_up(self, told: Any) -> TargetUp:
        return TargetUp(_target(told))

    def _target_down(self, told: Any) -> TargetDown:
        target_id, reason, returns_in_ns = told
        back_ns = None if returns_in_ns is None else _checked(returns_in_ns, int)
        return TargetDown(_checked(target_id, str), _checked(reason, str), back_ns)

    def _target_report(self, told: Any) -> TargetReport:
        target_id, offers = told
        return TargetReport(_checked(target_id, str), tuple(map(_offer, offers)))

    def _policy_swapped(self, told: Any) -> PolicySwapped:
        name, options = told
        return PolicySwapped(name, JournalledPolicy(_checked(name, str), dict(options)))

    def _woken(self, _told: Any) -> Woken:
        return Woken()

    # -- commands

    def _dispatch(
        self, run: Any, target: Any, model: Any, variant: Any, ids: Any, start: Any, reason: Any
    ) -> Dispatch:
        text = self._text
        return Dispatch(
            _checked(run, int),
            text(target),
            text(model),
            text(variant),
            tuple([self._id(back) for back in ids]),
            self._at_ns + _checked(start, int),
            text(reason),
        )

    def _finish(
        self, back: Any, outcome: Any, reason: Any, run: Any, queue_ns: Any, detail: Any = None
    ) -> Finish:
        return Finish(
            self._id(back),
            _OUTCOMES[_natural(outcome)],
            self._text(reason),
            run,
            _checked(queue_ns, int),
            {} if detail is None else self._keyed(_checked(detail, dict)),
        )

    def _cancel_run(self, run_id: Any) -> CancelRun:
        return CancelRun(_checked(run_id, int))

    def _wake_at(self, ahead_ns: Any) -> WakeAt:
        return WakeAt(self._at_ns + _checked(ahead_ns, int))

    def _keyed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(key): self._keyed(item) for key, item in value.items()}
        return value


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no number of anything")
    return value


_COMMAND_FIELDS = {
    kind: attrgetter(*[field.name for field in fields(kind)])
    for kind in (Dispatch, Finish, CancelRun, WakeAt)
}


def fingerprint(commands: Iterable[Command]) -> bytes:
    """Bytes that are the same for the same commands alone, all of their fields included."""
    return _pack([(type(c).__name__, _COMMAND_FIELDS[type(c)](c)) for c in commands])
