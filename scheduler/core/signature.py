"""A model's inputs and outputs, independent of how it is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

DTYPES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes per element of every numeric dtype that requests and results may have, by NumPy name."""

STRING = "string"
"""The dtype of text in a signature. A text tensor travels as `S<n>`, NumPy's name for elements of n
bytes: UTF-8, padded with zero bytes to the longest. So no text can end with a zero byte."""

_TEXT = re.compile("S([1-9][0-9]{0,8})")


def element_bytes(dtype: str) -> int | None:
    """Bytes per element of a dtype on the wire; None if tensors may not have that dtype."""
    if (size := DTYPES.get(dtype)) is not None:
        return size
    text = _TEXT.fullmatch(dtype)
    return None if text is None else int(text[1])


def travels_as(dtype: str, found: str) -> bool:
    """Whether a tensor received with dtype `found` matches a signature's `dtype`."""
    return found == dtype or (dtype == STRING and _TEXT.fullmatch(found) is not None)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of one tensor of a model.

    Attributes:
        name: The tensor's name in the model file.
        dtype: A key of `DTYPES`, or `STRING`.
        shape: The shape of one item, without the batch dimension; `None` marks a free dimension.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


def shape_text(shape: Sequence[int | None]) -> str:
    """A shape for people, e.g. `[*, 8, 8]`; `*` stands for a free dimension."""
    return f"[{', '.join('*' if size is None else str(size) for size in shape)}]"


def fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Whether a shape matches a spec's, in which `None` allows any size."""
    return len(shape) == len(wanted) and all(
        want is None or have == want for have, want in zip(shape, wanted, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model.

    Attributes:
        inputs: What a request must provide, in the file's order.
        outputs: What an answer contains, in the file's order.
        batched: True when the first dimension of every tensor in the file is the batch
            dimension (it is then left out of the specs); False when the model takes one
            item at a time and has no such dimension.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool
