"""One request as the client holds it while it is in flight, and what a caller may ask for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from scheduler import wire
from scheduler.errors import InvalidInput

if TYPE_CHECKING:
    from scheduler.client.connection import Connection

MAX_DEADLINE_MS = 24 * 3600 * 1000
MAX_TASK_MS = 10_000 * MAX_DEADLINE_MS
DEFAULT_PRIORITY = 3
LOWEST_PRIORITY = 7
LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9
_INTEGER = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)
_NO_NUMBER = (bool, np.timedelta64)
"""What is neither, although by its class it is one of these."""


class Future(Protocol):
    """What asyncio's and concurrent.futures' futures have in common."""

    def set_result(self, result: Any, /) -> None:
        """Ends it well."""

    def set_exception(self, exception: Any, /) -> None:
        """Ends it with an error."""

    def done(self) -> bool:
        """True once it has ended."""

    def cancel(self) -> bool:
        """Ends it as cancelled."""


class Options(TypedDict, total=False):
    """What `infer` and `map` hand on to `submit`, which says what each means."""

    deadline_s: float | None
    variant: str | None
    priority: int
    weight: float
    accept_late: bool
    exact: bool
    durable: bool
    id: str | None


class Call:
    """A message that wants an answer, and what is known of its way so far.

    Attributes:
        id: The message's id.
        future: Where the answer goes.
        header: The message; an infer's budget is put in when it is written.
        is_infer: True for an inference, False for a question about the box.
        due_ns: What the budget of a durable task counts down to; None for all others.
        grace_ns: How much longer than the deadline its answer may take, once it was written.
        buffers: The message's body.
        body_bytes: Its size.
        submitted_ns: When the caller asked, on this process's monotonic clock.
        deadline_ns: When the answer must be here, on the same clock.
        accept_late: True when the caller wants the answer after the deadline too.
        connection: The connection it was written to; None while it waits for one.
        sent_ns: When it was last written; 0 when never.
        sends: How often it was written.
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
        """Not yet written anywhere."""
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

    def frame(self, limits: wire.FrameLimits, url: str) -> list[Any]:
        """The buffers of the message, for a box that takes so much; over more it would hang up.

        Raises:
            InvalidInput: It is larger, or has an argument that no message can hold.
        """
        if self.body_bytes > limits.body_bytes:
            raise _too_large("body", self.body_bytes, url, limits.body_bytes, "body_mb")
        try:
            frame = wire.encode(self.header, self.buffers)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"an argument can't be written in a message: {error}") from None
        header_bytes = sum(map(len, frame)) - self.body_bytes - wire.PREFIX.size
        if header_bytes > limits.header_bytes:
            raise _too_large("header", header_bytes, url, limits.header_bytes, "header_kb")
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
    """A message that is answered by a reply, with its fields.

    Raises:
        InvalidInput: The timeout is not a number of seconds, above 0 and at most a day.
    """
    budget_ns = int(_checked_timeout_s(timeout_s) * 1e9)
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
    """A `task` message; the task's deadline is fixed now.

    Raises:
        InvalidInput: An argument is not what it should be; the message says what is.
    """
    if _checked_weight(weight) != 1 or accept_late:
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
) -> Call:
    """An `infer` message; its deadline is fixed now.

    Raises:
        InvalidInput: An argument is not what it should be; the message says what is.
    """
    now_ns = time.monotonic_ns()
    deadline_ns = now_ns + int(checked_deadline_ms(deadline_ms) * 1e6)
    if not isinstance(model, str) or not model:
        raise InvalidInput(f"model is the name of a model, not {model!r}")
    specs, buffers = wire.pack_tensors(_checked_arrays(inputs))
    header: wire.Header = {"t": "infer", "id": call_id, "model": model, "in": specs}
    if variant is not None:
        if not isinstance(variant, str) or not variant:
            raise InvalidInput(f"variant is the name of a variant of the model, not {variant!r}")
        header["variant"] = variant
    if type(priority) is not int or priority != DEFAULT_PRIORITY:
        header["priority"] = _checked_priority(priority)
    if type(weight) is not float or weight != 1:
        header["weight"] = _checked_weight(weight)
    if accept_late:
        header["late"] = True
    if exact:
        header["exact"] = True
    return Call(call_id, future, header, buffers, now_ns, deadline_ns, bool(accept_late))


def checked_deadline_ms(
    value: Any, name: str = "deadline_ms", most_ms: float = MAX_DEADLINE_MS
) -> float:
    """A number of milliseconds.

    Raises:
        InvalidInput: Not a number, or not between 0 and `most_ms`.
    """
    if value is None:
        raise InvalidInput(
            f"{name} is required: every request has a deadline, because without one the "
            "scheduler can neither order it nor say in time that it can't be met"
        )
    if not is_number(value):
        raise InvalidInput(f"{name} is a number of milliseconds, not {value!r}")
    number = as_float(value)
    if not 1e-6 <= number <= most_ms:
        raise InvalidInput(_out_of_range(name, most_ms, f"{most_ms} ms", value))
    return number


def _out_of_range(name: str, most_ms: float, most: str, value: Any) -> str:
    hours = 24 * most_ms / MAX_DEADLINE_MS
    return f"{name} is more than 0 and at most {most} ({hours:g} hours), not {value!r}"


def is_number(value: Any) -> bool:
    """Whether it is a real number, Python's or NumPy's."""
    return isinstance(value, _NUMBER) and not isinstance(value, _NO_NUMBER)


def as_float(value: Any) -> float:
    """A number as Python's: beside one of NumPy's, a bound would have to fit into its dtype."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _checked_timeout_s(value: Any) -> float:
    if not is_number(value):
        raise InvalidInput(f"timeout_s is a number of seconds, not {value!r}")
    number = as_float(value)
    if not 1e-9 <= number <= MAX_DEADLINE_MS / 1e3:
        raise InvalidInput(
            f"timeout_s is more than 0 and at most {MAX_DEADLINE_MS / 1e3:g} s, not {value!r}"
        )
    return number


def _checked_arrays(inputs: Any) -> wire.Tensors:
    if not isinstance(inputs, Mapping) or not inputs:
        raise InvalidInput(
            "inputs are a dict of input name to array, such as {'image': x}, "
            f"not {'an empty dict' if isinstance(inputs, Mapping) else type(inputs).__name__}"
        )
    arrays: wire.Tensors = {}
    for name, value in inputs.items():
        if not isinstance(name, str):
            raise InvalidInput(f"an input's name is a str, not {name!r}")
        arrays[name] = value if type(value) is np.ndarray else _made_array(name, value)
    return arrays


def _made_array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise InvalidInput(
            f"input {name!r} is a masked array, and its mask can't travel: pass x.filled(VALUE), "
            "with what the model is to see where it is masked"
        )
    try:
        return np.asarray(value)
    except Exception as error:  # whatever a package says of its own, e.g. a tensor with grad
        raise InvalidInput(f"input {name!r} does not make an array: {error}") from None


def _checked_priority(value: Any) -> int:
    if (
        not isinstance(value, _INTEGER)
        or isinstance(value, _NO_NUMBER)
        or not 0 <= value <= LOWEST_PRIORITY
    ):
        raise InvalidInput(
            f"priority is an integer from 0 (first) to {LOWEST_PRIORITY} (last), not {value!r}"
        )
    return int(value)


def _checked_weight(value: Any) -> float:
    weight = as_float(value) if is_number(value) else math.nan
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInput(
            f"weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, not {value!r}"
        )
    return weight


def milliseconds(deadline_s: Any, deadline_ms: Any, durable: bool) -> float:
    """A deadline in seconds as one in milliseconds.

    Raises:
        InvalidInput: It is no number, too large or too small, or there are both.
    """
    if deadline_ms is not None:
        raise InvalidInput("a deadline is given as deadline_s or as deadline_ms, not as both")
    if not is_number(deadline_s):
        raise InvalidInput(f"deadline_s is a number of seconds, not {deadline_s!r}")
    most_ms = MAX_TASK_MS if durable else MAX_DEADLINE_MS
    seconds = as_float(deadline_s)
    if not 1e-9 <= seconds <= most_ms / 1000:
        raise InvalidInput(_out_of_range("deadline_s", most_ms, f"{most_ms // 1000} s", deadline_s))
    return seconds * 1000


def no_task_id(value: Any) -> None:
    """Checks that a request, which is not durable, was given no id.

    Raises:
        InvalidInput: It was.
    """
    if value is not None:
        raise InvalidInput(
            f"only a durable task has an id: give durable=True with id={value!r}, or leave it out"
        )
