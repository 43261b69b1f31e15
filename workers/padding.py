"""Items of different lengths made equally long, so that they share batches, as `model.yaml` allows.

A dimension of an input is free, e.g. the number of tokens of a text. Requests share a batch only if
their shapes are the same, so texts of any length would each run alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite

import numpy as np

from scheduler.core.signature import STRING, Signature, TensorSpec, shape_text
from workers.model import Padding, ShapeRange
from workers.model_yaml import ModelFile, ModelFileError, nearest
from workers.tensors import Array


def padding_of(content: ModelFile, signature: Signature) -> tuple[Padding, ...]:
    """The inputs that may be padded, and the outputs that are as long as they.

    Raises:
        ModelFileError: An entry names an unknown tensor, or does not fit its dtype or shape.
    """
    known = {spec.name for spec in signature.outputs}
    padded = {name: entry.pad for name, entry in content.inputs.items() if entry.pad is not None}
    outputs: dict[str, list[str]] = {name: [] for name in padded}
    for name, output in content.outputs.items():
        if name not in known:
            raise ModelFileError(f"outputs: no output '{name}' ({nearest(name, known)})")
        if output.as_long_as not in padded:
            raise ModelFileError(
                f"outputs.{name}.as_long_as: '{output.as_long_as}' is no input with `pad` "
                f"({nearest(output.as_long_as, padded)})"
            )
        outputs[output.as_long_as].append(name)
    try:
        found = tuple(
            Padding(name, tuple(entry.to), entry.value, tuple(outputs[name]))
            for name, entry in padded.items()
        )
    except ValueError as error:
        raise ModelFileError(f"inputs: {error}") from error
    if (fault := padding_fault(found, signature)) is not None:
        raise ModelFileError(fault)
    return found


def padding_fault(padding: Sequence[Padding], signature: Signature) -> str | None:
    """Why a model can't be padded so, or None."""
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    for each in padding:
        spec = inputs.get(each.input)
        where = f"inputs.{each.input}.pad"
        if spec is None:
            return f"{where}: there is no such input"
        if spec.dtype == STRING or not _has_length(spec):
            told = f"{spec.dtype} {shape_text(spec.shape)}"
            return f"{where}: needs numbers with one free dimension, this is {told}"
        if not _holds(spec.dtype, each.value):
            return f"{where}.value: {each.value} is no {spec.dtype}"
        for name in each.outputs:
            if name not in outputs:
                return f"outputs.{name}: there is no such output"
            if not _has_length(outputs[name]):
                told = shape_text(outputs[name].shape)
                return f"outputs.{name}.as_long_as: needs one free dimension, this is {told}"
    return None


def _has_length(spec: TensorSpec) -> bool:
    return spec.shape.count(None) == 1


def _holds(dtype: str, value: float) -> bool:
    """Whether a dtype can represent a value; floats may round it."""
    kind = np.dtype(dtype)
    if not isfinite(value):
        return False
    if kind.kind == "f":
        return abs(value) <= float(np.finfo(kind).max)
    if kind.kind == "b":
        return value in (0, 1)
    return value == int(value) and np.iinfo(kind).min <= value <= np.iinfo(kind).max


def free_axis(spec: TensorSpec) -> int:
    """The place of the free dimension of a tensor that has one."""
    return spec.shape.index(None)


def padded_length(padding: Padding, length: int) -> int:
    """The length to which an item of this length is padded."""
    place = bisect_left(padding.to, length)
    return length if place == len(padding.to) else padding.to[place]


def fill(padded: Array, item: Array, value: float) -> None:
    """Copies an item into a longer array, and `value` into the rest of it."""
    padded[...] = value
    padded[tuple([slice(size) for size in item.shape])] = item


def cut(output: Array, axis: int, length: int) -> Array:
    """The first `length` elements of an output along an axis."""
    return output[(slice(None),) * axis + (slice(length),)]


def longest(padding: Sequence[Padding], signature: Signature) -> dict[str, tuple[int, ...]]:
    """By padded input, its longest shape, at which it is measured unless the owner names one."""
    return {name: bounds.most for name, bounds in ranges(padding, signature).items()}


def ranges(padding: Sequence[Padding], signature: Signature) -> dict[str, ShapeRange]:
    """By padded input, its shortest and longest shape."""
    specs = {spec.name: spec for spec in signature.inputs}
    return {
        each.input: ShapeRange(
            with_length(specs[each.input], each.to[0]), with_length(specs[each.input], each.to[-1])
        )
        for each in padding
    }


def with_length(spec: TensorSpec, length: int) -> tuple[int, ...]:
    """The shape of a tensor whose free dimension has this length."""
    return tuple(length if size is None else size for size in spec.shape)
