"""What the native door says, beside results: the headers of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.errors import LaxityError
from scheduler.wire import Header

Say = Callable[[Header, Sequence[Any]], None]
"""Answers a message, later and with a body."""


def reply(message_id: Any, value: Any) -> Header:
    """An answer to a question."""
    return {"t": "reply", "id": message_id, "value": value}


def failure(message_id: Any, code: str, message: str, detail: Mapping[str, Any]) -> Header:
    """Why there is no answer, or no result."""
    known_id = message_id if type(message_id) is int else None
    said = {"code": code, "message": message, "detail": dict(detail)}
    return {"t": "error", "id": known_id, **said}


def refusal(message_id: Any, why: LaxityError) -> Header:
    """The same, of an error."""
    return failure(message_id, why.code, str(why), why.detail)
