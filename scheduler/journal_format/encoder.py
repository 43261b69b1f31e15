"""Encodes events and commands as the records of one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BY_CALLER,
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
from scheduler.core.requests import RequestClass
from scheduler.journal_format.plain import plain_offer, plain_target
from scheduler.journal_format.words import (
    CANCEL_RUN,
    CLASS,
    CLOSED,
    DISPATCH,
    EVENTS,
    FINISH,
    FIRST_EVENT,
    GAP,
    MOST_NAMES,
    OUTCOMES,
    REST_DEFAULTS,
    TEXT,
    WAKE_AT,
    rest_of,
    spelled,
)

_NUMBERS = {outcome: number for number, outcome in enumerate(OUTCOMES)}
_USUAL = RequestClass("")
_NEEDED = 3
"""How many fields of a class are always told."""


class Encoder:
    """Encodes the records of one file.

    Args:
        at_ns: As in the header.
        last_id: As in the header.
    """

    def __init__(self, at_ns: int, last_id: int) -> None:
        """Starts without names."""
        self.last_id = last_id
        self._at_ns = at_ns
        self._texts: dict[str, int] = {}
        self._classes: dict[RequestClass, int] = {}
        self._new: list[bytes] = []
        self._pack: Callable[[Any], bytes] = msgpack.Packer(default=spelled).pack
        tellers: dict[type[Event], Callable[[Any], Any]] = {
            Submitted: self._submitted,
            Cancelled: self._cancelled,
            BatchDone: self._batch_done,
            BatchFailed: self._batch_failed,
            TargetUp: self._target_up,
            TargetDown: self._target_down,
            TargetReport: self._target_report,
            TargetChanged: self._target_changed,
            TargetWithdrew: self._target_withdrew,
            PolicySwapped: self._policy_swapped,
            Woken: self._woken,
        }
        self._events = {
            kind: (FIRST_EVENT + number, tellers[kind]) for number, kind in enumerate(EVENTS)
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
        failure: str | None,
    ) -> bytes:
        """Encodes one step, with the names that it is the first to use.

        Args:
            at_ns: When it was; not before the previous step.
            event: What happened.
            commands: The scheduler's commands.
            options: The policy's options, if the event is `PolicySwapped`.
            failure: What the policy did wrong; None if nothing.
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
        """Encodes that steps are missing before the next one."""
        return self._pack((GAP, at_ns, count))

    def closed(self) -> bytes:
        """Encodes that the file is complete."""
        return self._pack((CLOSED,))

    # -- names

    def _text(self, text: str) -> int | str:
        number = self._texts.get(text)
        if number is not None:
            return number
        number = len(self._texts)
        if number >= MOST_NAMES:
            return text
        self._texts[text] = number
        self._new.append(self._pack((TEXT, text)))
        return number

    def _class(self, kind: RequestClass) -> Any:
        number = self._classes.get(kind)
        if number is not None:
            return number
        number = len(self._classes)
        if number >= MOST_NAMES or kind.alone is not None:
            return _without_defaults(kind)
        self._classes[kind] = number
        # Fields with their default are left out, as in files from before these fields existed.
        self._new.append(self._pack((CLASS, *_without_defaults(kind))))
        return number

    # -- events

    def _submitted(self, event: Submitted) -> Any:
        told: list[Any] = []
        last_id, at_ns, classes = self.last_id, self._at_ns, self._classes
        for request in event.requests:
            kind = classes.get(request.kind)
            if kind is None:
                kind = self._class(request.kind)
            budget_ns, rest = request.deadline_ns - at_ns, rest_of(request)
            if rest == REST_DEFAULTS:
                told.append((request.id - last_id, kind, budget_ns, request.size_bytes))
            else:
                told.append((request.id - last_id, kind, budget_ns, request.size_bytes, rest))
            last_id = request.id
        self.last_id = last_id
        return told

    def _cancelled(self, event: Cancelled) -> Any:
        back = self.last_id - event.request_id
        return back if event.reason == BY_CALLER else (back, self._text(event.reason))

    def _batch_done(self, event: BatchDone) -> Any:
        if not event.errors:
            return event.run_id
        last_id = self.last_id
        return event.run_id, {last_id - i: error for i, error in event.errors.items()}

    def _batch_failed(self, event: BatchFailed) -> Any:
        return event.run_id, self._text(event.reason), event.started

    def _target_up(self, event: TargetUp) -> Any:
        told = plain_target(event.target)
        return {**told, "awaited": event.awaited} if event.awaited else told

    def _target_down(self, event: TargetDown) -> Any:
        told = event.target_id, event.reason, event.returns_in_ns, event.blameless
        return (*told, True) if event.removed else told

    def _target_report(self, event: TargetReport) -> Any:
        return event.target_id, [plain_offer(offer) for offer in event.offers]

    def _target_withdrew(self, event: TargetWithdrew) -> Any:
        return event.target_id, event.variants, event.reason

    def _target_changed(self, event: TargetChanged) -> Any:
        return plain_target(event.target), event.closed_ns

    def _policy_swapped(self, event: PolicySwapped) -> Any:
        return event.name, self._options

    def _woken(self, _event: Woken) -> Any:
        return None

    # -- commands

    def _dispatch(self, command: Dispatch) -> Any:
        last_id, text = self.last_id, self._text
        told = (
            DISPATCH,
            command.run_id,
            text(command.target_id),
            text(command.model),
            text(command.variant),
            [last_id - i for i in command.request_ids],
            command.latest_start_ns - self._at_ns,
            text(command.reason),
        )
        return (*told, text(command.form)) if command.form else told

    def _finish(self, command: Finish) -> Any:
        told = (
            FINISH,
            self.last_id - command.request_id,
            _NUMBERS[command.outcome],
            self._text(command.reason),
            command.run_id,
            command.queue_ns,
        )
        return (*told, self._keyed(command.detail)) if command.detail else told

    def _cancel_run(self, command: CancelRun) -> Any:
        return CANCEL_RUN, command.run_id

    def _wake_at(self, command: WakeAt) -> Any:
        return WAKE_AT, command.at_ns - self._at_ns

    def _keyed(self, value: Any) -> Any:
        """Replaces the keys of a mapping with names, at every depth."""
        if isinstance(value, Mapping):
            return {self._text(key): self._keyed(item) for key, item in value.items()}
        return value


def _without_defaults(kind: RequestClass) -> tuple[Any, ...]:
    """The fields of a class, without the last ones if they are as usual."""
    given = len(kind)
    while given > _NEEDED and kind[given - 1] == _USUAL[given - 1]:
        given -= 1
    return kind[:given]
