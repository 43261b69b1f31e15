"""What a caller may give the client, and what it is told of anything else."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from scheduler import wire
from scheduler.core.requests import LEAST_WEIGHT, LOWEST_PRIORITY, MOST_WEIGHT
from scheduler.errors import InvalidInput

MAX_DEADLINE_MS = 24 * 3600 * 1000
MAX_TASK_MS = 10_000 * MAX_DEADLINE_MS
_INTEGER = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)
_NO_NUMBER = (bool, np.timedelta64)
"""Types that are no numbers here, although their classes derive from the above."""


class Options(TypedDict, total=False):
    """The options that `infer` and `map` pass on to `submit`, which documents them."""

    deadline_s: float | None
    variant: str | None
    priority: int
    weight: float
    accept_late: bool
    exact: bool
    durable: bool
    id: str | None


def checked_deadline_ms(
    value: Any, name: str = "deadline_ms", most_ms: float = MAX_DEADLINE_MS
) -> float:
    """Checks a number of milliseconds, and returns it as a float.

    Raises:
        InvalidInput: It is not a number, or not between 0 and `most_ms`.
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


def milliseconds(deadline_s: Any, deadline_ms: Any, durable: bool) -> float:
    """Converts a deadline in seconds to milliseconds.

    Raises:
        InvalidInput: It is not a number, out of range, or both are given.
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


def _out_of_range(name: str, most_ms: float, most: str, value: Any) -> str:
    hours = 24 * most_ms / MAX_DEADLINE_MS
    return f"{name} is more than 0 and at most {most} ({hours:g} hours), not {value!r}"


def checked_timeout_s(value: Any, name: str = "timeout_s") -> float:
    """Checks a number of seconds, and returns it as a float.

    Raises:
        InvalidInput: It is not a number, or not above 0 and at most a day.
    """
    if not is_number(value):
        raise InvalidInput(f"{name} is a number of seconds, not {value!r}")
    number = as_float(value)
    if not 1e-9 <= number <= MAX_DEADLINE_MS / 1e3:
        raise InvalidInput(
            f"{name} is more than 0 and at most {MAX_DEADLINE_MS / 1e3:g} s, not {value!r}"
        )
    return number


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or NumPy."""
    return isinstance(value, _NUMBER) and not isinstance(value, _NO_NUMBER)


def as_float(value: Any) -> float:
    """Converts to a Python float; compared with a NumPy number, a bound must fit its dtype."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def checked_arrays(inputs: Any) -> wire.Tensors:
    """Checks the inputs of a request, and returns them as arrays.

    Raises:
        InvalidInput: They are not a dict of names to what makes an array.
    """
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
    except Exception as error:  # packages raise their own, e.g. for a tensor with grad
        raise InvalidInput(f"input {name!r} does not make an array: {error}") from None


def checked_priority(value: Any) -> int:
    """Checks a priority, and returns it as a Python integer.

    Raises:
        InvalidInput: It is not an integer from 0 to 7.
    """
    if (
        not isinstance(value, _INTEGER)
        or isinstance(value, _NO_NUMBER)
        or not 0 <= value <= LOWEST_PRIORITY
    ):
        raise InvalidInput(
            f"priority is an integer from 0 (first) to {LOWEST_PRIORITY} (last), not {value!r}"
        )
    return int(value)


def checked_weight(value: Any) -> float:
    """Checks a weight, and returns it as a Python float.

    Raises:
        InvalidInput: It is not a number from 1e-9 to 1e9.
    """
    weight = as_float(value) if is_number(value) else math.nan
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise InvalidInput(
            f"weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, not {value!r}"
        )
    return weight


def token_to_send(token: Any) -> str | None:
    """The token of a client: what it was given, or `LAXITY_TOKEN`; None if there is none.

    A file's last line end does not belong to the token in it, as on the box.

    Raises:
        InvalidInput: It is not text.
    """
    found = token or os.environ.get("LAXITY_TOKEN") or ""
    if not isinstance(found, str):
        raise InvalidInput(f"a token is text, not {type(found).__name__}")
    return found.strip() or None


def no_task_id(value: Any) -> None:
    """Checks that a request that is not durable was given no id.

    Raises:
        InvalidInput: It was.
    """
    if value is not None:
        raise InvalidInput(
            f"only a durable task has an id: give durable=True with id={value!r}, or leave it out"
        )
