"""Selects the outputs that a caller wants, as tensors or as classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.datatypes import DATATYPES, bytes_of
from scheduler.errors import InvalidInput
from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.request import InferRequest, WantedOutput


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output, ready to be written.

    Attributes:
        name: The output's name.
        datatype: The protocol's datatype.
        shape: The sizes of its dimensions.
        array: The values; None for BYTES.
        texts: The elements, for BYTES.
        wanted: How the caller wants it.
    """

    name: str
    datatype: str
    shape: list[int]
    array: NDArray[Any] | None
    texts: list[bytes]
    wanted: WantedOutput

    @property
    def raw(self) -> memoryview:
        """The values as the protocol's bytes."""
        if self.array is None:
            return memoryview(bytes_of(self.texts))
        if not self.array.size:
            return memoryview(b"")
        return np.ascontiguousarray(self.array).data.cast("B")


def output_tensors(request: InferRequest, inferred: Inferred) -> list[OutputTensor]:
    """The outputs that a request wants, in its order; all of them if it names none.

    Raises:
        InvalidInput: Classes are wanted of an output that is text or empty.
    """
    wanted = request.outputs or [WantedOutput(name, request.binary) for name in inferred.outputs]
    return [_tensor(inferred.outputs[want.name], want, inferred.has_batch) for want in wanted]


def _tensor(array: NDArray[Any], wanted: WantedOutput, has_batch: bool) -> OutputTensor:
    if array.dtype.kind == "S":
        if wanted.classes:
            raise InvalidInput(f"output {wanted.name!r} is text and has no classes")
        return OutputTensor(
            wanted.name, "BYTES", list(array.shape), None, array.ravel().tolist(), wanted
        )
    if not wanted.classes:
        datatype = DATATYPES[array.dtype.name]
        return OutputTensor(wanted.name, datatype, list(array.shape), array, [], wanted)
    if not array.size:
        raise InvalidInput(f"output {wanted.name!r} is empty and has no classes")
    rows = array.reshape(array.shape[0], -1) if has_batch and array.ndim else array.reshape(1, -1)
    count = min(wanted.classes, rows.shape[1])
    texts = [text for row in rows for text in _classes(row, count)]
    shape = [rows.shape[0], count] if has_batch else [count]
    return OutputTensor(wanted.name, "BYTES", shape, None, texts, wanted)


def _classes(row: NDArray[Any], count: int) -> list[bytes]:
    """`value:index` of the highest values, highest first, equal ones by index."""
    if row.dtype.kind == "f":
        form, order = "%f:%d", np.argsort(-row, kind="stable")[:count]
    else:  # the smallest int64, and every uint64, have no negative
        form, last = "%d:%d", len(row) - 1
        order = last - np.argsort(row[::-1], kind="stable")[: -count - 1 : -1]
    return [(form % (row[index], index)).encode() for index in order]
