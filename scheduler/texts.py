"""Tensors of text: conversion between NumPy's forms and the form on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.signature import DTYPES, STRING
from scheduler.errors import InvalidInput

Array = NDArray[Any]

MOST_ELEMENTS = 1 << 20
"""The most texts in one tensor: as an object each takes some 40 bytes, however short it is."""

_MOST_FILLED = 4
_LITTLE_BYTES = 1 << 20

_OF_OBJECTS = "OT"
"""The dtype kinds of Python objects and of NumPy's variable-length strings."""


def as_text(name: str, array: Array) -> Array:
    """Converts text to its form on the wire: bytes of one length, UTF-8 if it was str.

    Args:
        name: The tensor's name, for errors.
        array: Text as str or bytes, in a NumPy dtype or as objects.

    Raises:
        InvalidInput: It holds something else, or a text that ends with a zero byte.
    """
    if array.dtype.kind == "U":
        try:
            return np.char.encode(array, "utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"tensor {name!r} holds invalid text: {error}") from None
    if array.dtype.kind in _OF_OBJECTS:
        return of_elements(name, array.ravel().tolist(), array.shape)
    if array.dtype.kind != "S":
        accepted = ", ".join((*DTYPES, STRING))
        raise InvalidInput(f"tensor {name!r} has dtype {array.dtype}; accepted are {accepted}")
    return array if array.dtype.itemsize else array.astype("S1")


def of_elements(name: str, elements: Sequence[Any], shape: Sequence[int]) -> Array:
    """Makes a tensor of text from its elements, str or bytes, in row-major order.

    Raises:
        InvalidInput: An element is neither or ends with a zero byte, or the lengths are so unequal
            that most of a large tensor would be padding.
    """
    try:
        raws = [each.encode() if isinstance(each, str) else each for each in elements]
    except UnicodeEncodeError as error:
        raise InvalidInput(f"tensor {name!r} holds invalid text: {error}") from None
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
            f"tensor {name!r} holds {len(raws)} texts of up to {longest} bytes: padded to the "
            f"longest they take {filled} bytes; send long ones separately"
        )
    return np.array(raws, f"S{longest}").reshape(shape)


def check_utf8(name: str, array: Array) -> None:
    """Checks that each element of a tensor of bytes is valid UTF-8.

    Raises:
        InvalidInput: One is not, or there are too many elements.
    """
    if array.size > MOST_ELEMENTS:
        most = f"a tensor may hold {MOST_ELEMENTS:,}"
        raise InvalidInput(f"tensor {name!r} holds {array.size:,} texts; {most}")
    rows = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    try:
        # Decoding all at once is ten times as fast as one by one. It suffices if no element begins
        # in the middle of a character.
        rows.tobytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"tensor {name!r} holds bytes that are no UTF-8: {error}") from None
    if (rows[:, :1] & 0xC0 == 0x80).any():
        raise InvalidInput(f"tensor {name!r} holds a text that begins within a character")


def decoded(array: Array) -> Array:
    """Text as str, with a replacement character for invalid UTF-8; other tensors unchanged."""
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def dtype_name(array: Array) -> str:
    """A tensor's dtype as a signature names it."""
    return STRING if array.dtype.kind == "S" else array.dtype.name
