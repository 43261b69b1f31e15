"""Tensors of text: from what NumPy and people have to what travels, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.signature import DTYPES, STRING
from scheduler.errors import InvalidInput

Array = NDArray[Any]

MOST_ELEMENTS = 1 << 20
"""So many texts may be in one tensor: as objects each takes some 40 bytes, however short it is."""

_MOST_FILLED = 4
_LITTLE_BYTES = 1 << 20

_OF_OBJECTS = "OT"
"""The kinds of arrays that hold Python's objects, or NumPy's strings of any length."""


def as_text(name: str, array: Array) -> Array:
    """Text as it travels: bytes of one length, UTF-8 where it was str.

    Args:
        name: What the tensor is called in an error.
        array: Of str or bytes, as a dtype of NumPy's or as objects.

    Raises:
        InvalidInput: It holds something else, or a text that ends with a zero.
    """
    if array.dtype.kind == "U":
        try:
            return np.char.encode(array, "utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"tensor {name!r} holds what is no text: {error}") from None
    if array.dtype.kind in _OF_OBJECTS:
        return of_elements(name, array.ravel().tolist(), array.shape)
    if array.dtype.kind != "S":
        accepted = ", ".join((*DTYPES, STRING))
        raise InvalidInput(f"tensor {name!r} has dtype {array.dtype}; accepted are {accepted}")
    return array if array.dtype.itemsize else array.astype("S1")


def of_elements(name: str, elements: Sequence[Any], shape: Sequence[int]) -> Array:
    """A tensor of text from its elements, str or bytes, in row-major order.

    Raises:
        InvalidInput: One is neither, or ends with a zero; or they are many and of such unequal
            lengths that most of the tensor would be filling.
    """
    try:
        raws = [each.encode() if isinstance(each, str) else each for each in elements]
    except UnicodeEncodeError as error:
        raise InvalidInput(f"tensor {name!r} holds what is no text: {error}") from None
    for raw in raws:
        if not isinstance(raw, bytes):
            raise InvalidInput(
                f"tensor {name!r} is of objects and holds {raw!r:.40}; accepted are str and bytes, "
                "or an array that has a dtype of numbers"
            )
        if raw.endswith(b"\0"):
            raise InvalidInput(f"tensor {name!r} holds a text that ends with a zero, {raw[-20:]!r}")
    longest = max(map(len, raws), default=0) or 1
    filled = longest * len(raws)
    if filled > max(_LITTLE_BYTES, _MOST_FILLED * sum(map(len, raws))):
        raise InvalidInput(
            f"tensor {name!r} holds {len(raws)} texts of up to {longest} bytes: filled up to the "
            f"longest they take {filled} bytes; send long ones apart"
        )
    return np.array(raws, f"S{longest}").reshape(shape)


def check_utf8(name: str, array: Array) -> None:
    """Nothing, where each element of a tensor of bytes is text.

    Raises:
        InvalidInput: One is not, or there are too many.
    """
    if array.size > MOST_ELEMENTS:
        most = f"a tensor may hold {MOST_ELEMENTS:,}"
        raise InvalidInput(f"tensor {name!r} holds {array.size:,} texts; {most}")
    rows = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    try:
        # All at once, since that is ten times as fast as each by itself: it is enough if none
        # begins in the middle of a character.
        rows.tobytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"tensor {name!r} holds bytes that are no UTF-8: {error}") from None
    if (rows[:, :1] & 0xC0 == 0x80).any():
        raise InvalidInput(f"tensor {name!r} holds a text that begins within a character")


def decoded(array: Array) -> Array:
    """Text as str, with a sign for what is no UTF-8; any other tensor as it is."""
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def dtype_name(array: Array) -> str:
    """The dtype of a tensor in the words of a signature."""
    return STRING if array.dtype.kind == "S" else array.dtype.name
