"""Decodes the records of one file into events and commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from scheduler.core.requests import Request, RequestClass
from scheduler.journal_format.plain import (
    BROKEN,
    checked,
    offer_from,
    shapes_from,
    target_from,
)
from scheduler.journal_format.words import (
    CLASS,
    CLOSED,
    FIRST_EVENT,
    GAP,
    OUTCOMES,
    REST_NAMES,
    TEXT,
    Closed,
    Entry,
    FormatError,
    Gap,
    Header,
    JournalledPolicy,
)


class Decoder:
    """Decodes the records of one file."""

    def __init__(self, header: Header) -> None:
        """Starts without names."""
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
            self._target_changed,
            self._target_withdrew,
        )
        self._commands: tuple[Callable[..., Command], ...] = (
            self._dispatch,
            self._finish,
            self._cancel_run,
            self._wake_at,
        )

    def record(self, record: Any) -> Entry | Gap | Closed | None:
        """Decodes a record; None for one that only names something for later ones.

        Raises:
            FormatError: It is no record of a journal.
        """
        try:
            return self._record(record)
        except BROKEN as error:
            raise FormatError(f"no record of a journal: {type(error).__name__}: {error}") from None

    def _record(self, record: Any) -> Entry | Gap | Closed | None:
        kind = checked(checked(record, list)[0], int)
        if kind >= FIRST_EVENT:
            return self._entry(kind - FIRST_EVENT, *record[1:])
        if kind == TEXT:
            self._texts.append(checked(record[1], str))
        elif kind == CLASS:
            self._classes.append(self._named_class(*record[1:]))
        elif kind == GAP:
            return Gap(checked(record[1], int), checked(record[2], int))
        elif kind == CLOSED:
            return Closed()
        else:
            raise ValueError(f"records are of kind 0 or more, not {kind}")
        return None

    def _entry(
        self, number: int, since_ns: Any, told: Any, said: Any, failure: Any = None
    ) -> Entry:
        self._at_ns += checked(since_ns, int)
        event = self._events[number](told)
        ways = self._commands
        commands = tuple([ways[_natural(item[0])](*item[1:]) for item in said])
        return Entry(self._at_ns, event, commands, failure and checked(failure, str))

    # -- names

    def _text(self, value: Any) -> str:
        return self._texts[_natural(value)] if type(value) is int else checked(value, str)

    def _class(self, value: Any) -> RequestClass:
        return self._classes[_natural(value)] if type(value) is int else self._named_class(*value)

    def _named_class(
        self,
        model: Any,
        variant: Any,
        shapes: Any,
        alone: Any = None,
        local: Any = False,
        exact: Any = False,
        failed_at: Any = None,
    ) -> RequestClass:
        name = None if variant is None else checked(variant, str)
        return RequestClass(
            checked(model, str),
            name,
            shapes_from(shapes),
            alone,
            checked(local, bool),
            checked(exact, bool),
            None if failed_at is None else checked(failed_at, str),
        )

    def _id(self, back: Any) -> int:
        return self._last_id - int(checked(back, int))

    # -- events

    def _submitted(self, told: Any) -> Submitted:
        return Submitted(tuple([self._request(*item) for item in told]))

    def _request(self, step: Any, kind: Any, budget_ns: Any, size: Any, rest: Any = ()) -> Request:
        self._last_id += checked(step, int)
        deadline_ns = self._at_ns + checked(budget_ns, int)
        more = dict(zip(REST_NAMES, rest, strict=True)) if rest else {}
        return Request(
            self._last_id, self._class(kind), deadline_ns, size_bytes=checked(size, int), **more
        )

    def _cancelled(self, told: Any) -> Cancelled:
        if type(told) is int:
            return Cancelled(self._id(told))
        back, reason = told
        return Cancelled(self._id(back), self._text(reason))

    def _batch_done(self, told: Any) -> BatchDone:
        if type(told) is int:
            return BatchDone(told)
        run_id, errors = told
        named = {self._id(back): checked(error, str) for back, error in errors.items()}
        return BatchDone(checked(run_id, int), named)

    def _batch_failed(self, told: Any) -> BatchFailed:
        run_id, reason, started = told
        return BatchFailed(checked(run_id, int), self._text(reason), checked(started, bool))

    def _target_up(self, told: Any) -> TargetUp:
        awaited = _names(told.pop("awaited", ()))
        return TargetUp(target_from(told), awaited)

    def _target_down(self, told: Any) -> TargetDown:
        target_id, reason, returns_in_ns, blameless, *removed = told
        back_ns = None if returns_in_ns is None else checked(returns_in_ns, int)
        return TargetDown(
            checked(target_id, str),
            checked(reason, str),
            back_ns,
            checked(blameless, bool),
            *[checked(each, bool) for each in removed],
        )

    def _target_report(self, told: Any) -> TargetReport:
        target_id, offers = told
        return TargetReport(checked(target_id, str), tuple(map(offer_from, offers)))

    def _target_withdrew(self, told: Any) -> TargetWithdrew:
        target_id, variants, reason = told
        return TargetWithdrew(checked(target_id, str), _names(variants), checked(reason, str))

    def _target_changed(self, told: Any) -> TargetChanged:
        target, closed_ns = told
        return TargetChanged(target_from(target), checked(closed_ns, int))

    def _policy_swapped(self, told: Any) -> PolicySwapped:
        name, options = told
        return PolicySwapped(name, JournalledPolicy(checked(name, str), dict(options)))

    def _woken(self, _told: Any) -> Woken:
        return Woken()

    # -- commands

    def _dispatch(
        self,
        run: Any,
        target: Any,
        model: Any,
        variant: Any,
        ids: Any,
        start: Any,
        reason: Any,
        form: Any = "",
    ) -> Dispatch:
        text = self._text
        return Dispatch(
            checked(run, int),
            text(target),
            text(model),
            text(variant),
            tuple([self._id(back) for back in ids]),
            self._at_ns + checked(start, int),
            text(reason),
            text(form),
        )

    def _finish(
        self, back: Any, outcome: Any, reason: Any, run: Any, queue_ns: Any, detail: Any = None
    ) -> Finish:
        return Finish(
            self._id(back),
            OUTCOMES[_natural(outcome)],
            self._text(reason),
            run,
            checked(queue_ns, int),
            {} if detail is None else self._keyed(checked(detail, dict)),
        )

    def _cancel_run(self, run_id: Any) -> CancelRun:
        return CancelRun(checked(run_id, int))

    def _wake_at(self, ahead_ns: Any) -> WakeAt:
        return WakeAt(self._at_ns + checked(ahead_ns, int))

    def _keyed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(key): self._keyed(item) for key, item in value.items()}
        return value


def _names(told: Any) -> tuple[tuple[str, str], ...]:
    """Models' and variants' names."""
    return tuple([(checked(model, str), checked(variant, str)) for model, variant in told])


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no number of anything")
    return value
