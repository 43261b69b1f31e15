"""The datatypes of the Open Inference Protocol: conversion between bytes, JSON and arrays."""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.signature import STRING
from scheduler.errors import InvalidInput
from scheduler.texts import MOST_ELEMENTS
from scheduler.wire import MAX_DIMENSIONS

Array = NDArray[Any]

NATIVE: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""NumPy's name for each numeric datatype that a model can take."""

DATATYPES: dict[str, str] = {
    **{name: datatype for datatype, name in NATIVE.items()},
    STRING: "BYTES",
}
"""The protocol's name for each dtype of a signature."""

_BYTES, _BF16 = "BYTES", "BF16"
_ACCEPTED = (*NATIVE, _BF16, _BYTES)
_LENGTH = struct.Struct("<I")
_MAX_SIZE = 2**40
_KINDS: dict[str, set[type]] = {"b": {bool}, "f": {int, float}, "i": {int}, "u": {int}}


def checked_shape(name: str, shape: Any) -> list[int]:
    """Checks the shape of a tensor.

    Raises:
        InvalidInput: It is not a list of sizes, or has too many or too large ones.
    """
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(f"shape of {name!r} should be a list of at most {MAX_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in shape):
        raise InvalidInput(f"shape of {name!r} should hold integers from 0, not {shape!r:.80}")
    # Zeros are skipped, because array libraries also multiply the sizes of an empty tensor.
    if math.prod(size for size in shape if size) > _MAX_SIZE:
        raise InvalidInput(f"shape of {name!r}, {shape!r:.80}, is too large")
    return shape


def checked_datatype(name: str, datatype: Any) -> str:
    """Checks the datatype of a tensor.

    Raises:
        InvalidInput: It is not one of the protocol's.
    """
    if datatype not in _ACCEPTED:
        raise InvalidInput(
            f"datatype of {name!r} should be one of {', '.join(_ACCEPTED)}, not {datatype!r:.80}"
        )
    return str(datatype)


def from_bytes(name: str, datatype: str, shape: list[int], raw: memoryview | bytes) -> Array:
    """Makes a tensor from little-endian, row-major bytes, without a copy where possible.

    BF16 becomes float32, which represents all its values. BYTES becomes an array of objects whose
    elements are bytes (`for_model`).

    Raises:
        InvalidInput: The number of bytes does not match the datatype and shape.
    """
    if datatype == _BYTES:
        return _of_elements(name, shape, elements_of(name, raw))
    count = math.prod(shape)
    dtype = np.dtype("<u2") if datatype == _BF16 else np.dtype(NATIVE[datatype])
    if len(raw) != count * dtype.itemsize:
        raise InvalidInput(
            f"tensor {name!r} ({datatype} {shape}) takes {count * dtype.itemsize} bytes, "
            f"not {len(raw)}"
        )
    array: Array = np.frombuffer(raw, dtype).reshape(shape)
    if datatype == _BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif datatype == "BOOL" and array.size and np.max(np.frombuffer(raw, np.uint8)) > 1:
        raise InvalidInput(f"tensor {name!r} is BOOL: each byte is 0 or 1")
    return array


def from_list(name: str, datatype: str, shape: list[int], data: Any) -> Array:
    """Makes a tensor from JSON: its elements in row-major order, nested or flat.

    Raises:
        InvalidInput: Elements are not of the datatype, or their number does not match the shape.
    """
    if not isinstance(data, list):
        raise InvalidInput(f"data of {name!r} should be a list, not {type(data).__name__}")
    flat, kinds = _flat(name, data)
    if datatype == _BYTES:
        if not kinds <= {str}:
            raise InvalidInput(f"data of {name!r} should hold only BYTES values (strings)")
        return _of_elements(name, shape, [text.encode() for text in flat])
    if len(flat) != math.prod(shape):
        raise InvalidInput(
            f"data of {name!r} has {len(flat)} elements, shape {shape} has {math.prod(shape)}"
        )
    wanted = np.dtype("float32" if datatype == _BF16 else NATIVE[datatype])
    if not flat:
        return np.empty(shape, wanted)
    # Types are checked first: in an array of texts each element takes the longest one's memory.
    if not kinds <= _KINDS[wanted.kind] or (array := _of_numbers(flat, wanted)) is None:
        raise InvalidInput(f"data of {name!r} should hold only {datatype} values")
    array = array.reshape(shape)
    if wanted.kind == "f" and np.isinf(array).any():  # JSON has no infinity
        raise InvalidInput(f"data of {name!r} has a value that is too large for {datatype}")
    return array


def elements_of(name: str, raw: memoryview | bytes) -> list[bytes]:
    """The elements of a BYTES tensor, in which each is preceded by its length.

    Raises:
        InvalidInput: A length points beyond the end, or there are too many elements.
    """
    elements: list[bytes] = []
    offset, end = 0, len(raw)
    while offset < end:
        start = offset + _LENGTH.size
        if start > end:
            raise InvalidInput(f"BYTES tensor {name!r} ends within a length")
        if len(elements) == MOST_ELEMENTS:
            raise InvalidInput(f"BYTES tensor {name!r} has more than {MOST_ELEMENTS} elements")
        offset = start + _LENGTH.unpack_from(raw, offset)[0]
        if offset > end:
            raise InvalidInput(f"BYTES tensor {name!r} ends within an element")
        elements.append(bytes(raw[start:offset]))
    return elements


def bytes_of(elements: list[bytes]) -> bytes:
    """Packs a BYTES tensor: each element preceded by its length."""
    return b"".join(part for e in elements for part in (_LENGTH.pack(len(e)), e))


def _of_numbers(flat: list[Any], wanted: np.dtype[Any]) -> Array | None:
    """Converts JSON numbers to a dtype; None if an integer is out of its range.

    A value that is too large for a floating-point dtype becomes infinite.
    """
    found = np.array(flat)
    if wanted.kind in "iu":
        # NumPy finds no integer dtype for 1 and 2**63 together; such a list is compared as it is.
        numbers = [found.min(), found.max()] if found.dtype.kind in "iu" else flat
        info = np.iinfo(wanted)
        if int(min(numbers)) < info.min or int(max(numbers)) > info.max:
            return None
        return found.astype(wanted) if numbers is not flat else np.array(flat, wanted)
    with np.errstate(over="ignore"):
        if found.dtype.kind != "O":
            return found.astype(wanted)
        try:
            return np.array(flat, wanted)
        except OverflowError:
            return np.full(len(flat), np.inf, wanted)


def _flat(name: str, data: list[Any]) -> tuple[list[Any], set[type]]:
    """The elements of nested lists, and their types."""
    kinds = set(map(type, data))
    for _ in range(MAX_DIMENSIONS):
        if list not in kinds:
            return data, kinds
        if len(kinds) > 1:
            raise InvalidInput(f"data of {name!r} is nested unevenly")
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    raise InvalidInput(f"data of {name!r} is nested more than {MAX_DIMENSIONS} deep")


def for_model(name: str, array: Array, dtype: str | None) -> Array:
    """Converts a tensor received as BYTES to what an input takes; other tensors are unchanged.

    Text stays text. Any other input takes one element, as the uint8 vector of its bytes; models
    that decode images themselves have such inputs.

    Args:
        name: The input's name.
        array: The tensor, from `from_bytes` or `from_list`.
        dtype: The input's dtype in the signature; None if the model has no such input.

    Raises:
        InvalidInput: There are several elements for an input that isn't text.
    """
    if array.dtype != object or dtype == STRING:
        return array
    if array.size != 1:
        raise InvalidInput(
            f"BYTES tensor {name!r} has {array.size} elements; an input that isn't text takes "
            "one, as a UINT8 vector of its bytes"
        )
    return np.frombuffer(array.item(), np.uint8)


def _of_elements(name: str, shape: list[int], elements: list[bytes]) -> Array:
    if len(elements) != math.prod(shape):
        raise InvalidInput(
            f"tensor {name!r} has {len(elements)} elements, shape {shape} has {math.prod(shape)}"
        )
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
