"""One request as the client holds it while in flight, made of a caller's arguments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from scheduler import wire
from scheduler.client.arguments import (
    MAX_TASK_MS,
    checked_arrays,
    checked_deadline_ms,
    checked_priority,
    checked_timeout_s,
    checked_weight,
)
from scheduler.core.requests import DEFAULT_PRIORITY
from scheduler.errors import InvalidInput
from scheduler.shared_pages import LEAST_BYTES

if TYPE_CHECKING:
    from scheduler.client.connection import Connection
    from scheduler.client.lent_memory import LentMemory

_AT_BYTES = 12
"""What `at` adds to a header, at most."""


class Future(Protocol):
    """The common part of asyncio's and concurrent.futures' futures."""

    def set_result(self, result: Any, /) -> None:
        """Ends it with a result."""

    def set_exception(self, exception: Any, /) -> None:
        """Ends it with an error."""

    def cancel(self) -> bool:
        """Ends it as cancelled."""


class Call:
    """A message that expects an answer, and its progress so far.

    Attributes:
        id: The message's id.
        future: Receives the answer.
        header: The message; the budget of an `infer` is filled in when it is sent.
        is_infer: Whether it is an `infer` message; all others are questions or durable tasks.
        due_ns: The deadline of a durable task, to which its budget counts down; None for all
            others.
        grace_ns: How much longer than the deadline the answer may take, once the call has been
            sent.
        buffers: The message's body.
        body_bytes: The body's size.
        submitted_ns: When the caller submitted it, on this process's monotonic clock.
        deadline_ns: When the answer must have arrived, on the same clock.
        accept_late: Whether the caller wants the answer after the deadline too.
        connection: The connection it was sent on; None while it waits for one.
        sent_ns: When it was last sent; 0 if never.
        sends: How often it was sent.
    """

    __slots__ = (
        "accept_late",
        "body_bytes",
        "buffers",
        "connection",
        "deadline_ns",
        "due_ns",
        "future",
        "grace_ns",
        "header",
        "id",
        "is_infer",
        "sends",
        "sent_ns",
        "submitted_ns",
    )

    def __init__(
        self,
        call_id: int,
        future: Future,
        header: wire.Header,
        buffers: list[Any],
        submitted_ns: int,
        deadline_ns: int,
        accept_late: bool,
    ) -> None:
        """Starts unsent."""
        self.id = call_id
        self.future = future
        self.header = header
        self.is_infer = header["t"] == "infer"
        self.buffers = buffers
        self.body_bytes = sum(map(len, buffers))
        self.submitted_ns = submitted_ns
        self.deadline_ns = deadline_ns
        self.due_ns: int | None = None
        self.grace_ns = 0
        self.accept_late = accept_late
        self.connection: Connection | None = None
        self.sent_ns = 0
        self.sends = 0

    def frame(
        self, limits: wire.FrameLimits, url: str, lent: LentMemory | None = None
    ) -> list[Any]:
        """Encodes the message, within the limits beyond which the box would close the connection.

        Args:
            limits: The largest header and body that the box accepts.
            url: The box, for messages.
            lent: Where a large body of an inference goes if there is room, instead of being sent.

        Raises:
            InvalidInput: It is larger, or an argument can't be encoded.
        """
        if self.body_bytes > limits.body_bytes:
            raise _too_large("body", self.body_bytes, url, limits.body_bytes, "body_mb")
        try:
            frame = wire.encode(self.header, self.buffers)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"an argument can't be written in a message: {error}") from None
        header_bytes = wire.header_bytes(frame, self.body_bytes)
        if header_bytes > limits.header_bytes:
            raise _too_large("header", header_bytes, url, limits.header_bytes, "header_kb")
        is_placed = self.is_infer and self.body_bytes >= LEAST_BYTES
        if lent is not None and is_placed and header_bytes + _AT_BYTES <= limits.header_bytes:
            start = lent.put(self.buffers, self.body_bytes)
            if start is not None:
                return wire.encode({**self.header, "at": start})
        return frame


def _too_large(part: str, size: int, url: str, limit: int, setting: str) -> InvalidInput:
    return InvalidInput(
        f"the request's {part} takes {size} bytes, {url} accepts up to {limit} (limits.{setting})"
    )


def question_call(
    call_id: int,
    future: Future,
    kind: str,
    timeout_s: float,
    fields: Mapping[str, Any] | None = None,
    grace_s: float = 0.0,
) -> Call:
    """Makes a message that is answered by a `reply`.

    Raises:
        InvalidInput: The timeout is not a number of seconds, above 0 and at most a day.
    """
    budget_ns = int(checked_timeout_s(timeout_s) * 1e9)
    now_ns = time.monotonic_ns()
    header = {"t": kind, "id": call_id, **(fields or {})}
    call = Call(call_id, future, header, [], now_ns, now_ns + budget_ns, False)
    call.grace_ns = int(grace_s * 1e9)
    return call


def task_call(
    call_id: int,
    future: Future,
    task_id: Any,
    timeout_s: float,
    model: str,
    inputs: Mapping[str, Any],
    deadline_ms: Any,
    variant: str | None,
    priority: int,
    weight: float,
    accept_late: bool,
) -> Call:
    """Makes a `task` message; the task's deadline counts from now.

    Raises:
        InvalidInput: An argument is not what it should be; the message says what is.
    """
    if checked_weight(weight) != 1 or accept_late:
        raise InvalidInput("a durable task has neither weight nor accept_late")
    if not isinstance(task_id, str) or not task_id:
        raise InvalidInput(f"id is the text by which the task is to be known, not {task_id!r}")
    deadline_ms = checked_deadline_ms(deadline_ms, most_ms=MAX_TASK_MS)
    seconds_ms = timeout_s * 1e3
    call = infer_call(
        call_id, future, model, inputs, seconds_ms, variant=variant, priority=priority
    )
    call.header.update(t="task", task=task_id)
    call.is_infer = False
    call.due_ns = call.submitted_ns + int(deadline_ms * 1e6)
    return call


def infer_call(
    call_id: int,
    future: Future,
    model: str,
    inputs: Mapping[str, Any],
    deadline_ms: float | None,
    *,
    variant: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    weight: float = 1.0,
    accept_late: bool = False,
    exact: bool = False,
    trace: str = "",
) -> Call:
    """Makes an `infer` message; its deadline counts from now.

    `trace` is the `traceparent` of the caller, empty if it has none; the other arguments are those
    of `Client.submit`.

    Raises:
        InvalidInput: An argument is not what it should be; the message says what is.
    """
    now_ns = time.monotonic_ns()
    deadline_ns = now_ns + int(checked_deadline_ms(deadline_ms) * 1e6)
    if not isinstance(model, str) or not model:
        raise InvalidInput(f"model is the name of a model, not {model!r}")
    specs, buffers = wire.pack_tensors(checked_arrays(inputs))
    header: wire.Header = {"t": "infer", "id": call_id, "model": model, "in": specs}
    if variant is not None:
        if not isinstance(variant, str) or not variant:
            raise InvalidInput(f"variant is the name of a variant of the model, not {variant!r}")
        header["variant"] = variant
    if type(priority) is not int or priority != DEFAULT_PRIORITY:
        header["priority"] = checked_priority(priority)
    if type(weight) is not float or weight != 1:
        header["weight"] = checked_weight(weight)
    if accept_late:
        header["late"] = True
    if exact:
        header["exact"] = True
    if trace:
        header["trace"] = trace
    return Call(call_id, future, header, buffers, now_ns, deadline_ns, bool(accept_late))
