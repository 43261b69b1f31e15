"""Headers of the native door's messages, other than results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scheduler.errors import LaxityError
from scheduler.wire import Header


class Say(Protocol):
    """Sends the answer to a message, with a body, later."""

    def __call__(
        self, header: Header, body: Sequence[Any], left: Callable[[], None] | None = None, /
    ) -> None:
        """Sends it; `left` is called once it has left the box, or can't any more."""


def reply(message_id: Any, value: Any) -> Header:
    """An answer to a question."""
    return {"t": "reply", "id": message_id, "value": value}


def failure(message_id: Any, code: str, message: str, detail: Mapping[str, Any]) -> Header:
    """An error: why there is no reply, or no result."""
    known_id = message_id if type(message_id) is int else None
    said = {"code": code, "message": message, "detail": dict(detail)}
    return {"t": "error", "id": known_id, **said}


def refusal(message_id: Any, why: LaxityError) -> Header:
    """The `failure` that tells of an error."""
    return failure(message_id, why.code, str(why), why.detail)
