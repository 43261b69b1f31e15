"""Converts between requests of the box and calls to a server, for models that match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.core.signature import DTYPES, STRING, TensorSpec, shape_text
from scheduler.daemon.cloud.endpoint import (
    Fault,
    InputTensor,
    OutputTensor,
    RemoteError,
    RemoteModel,
    RemoteTensor,
)
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.shrinking import Shrinking, Shrunk
from scheduler.datatypes import DATATYPES, bytes_of, elements_of
from scheduler.encodings.codec import Array
from scheduler.errors import InvalidInput
from scheduler.texts import check_utf8, of_elements
from scheduler.wire import ALIGNMENT, pack_tensors, unpack_tensors
from workers.link import ModelCard, Packed

UNNAMED = "remote"
"""The variant of a model whose server lists no versions."""


@dataclass(frozen=True, slots=True)
class CloudModel:
    """A model of the box that a server runs as well.

    Attributes:
        card: The model as the box knows it.
        remote: Its name there.
        variant: The variant named in answers: a variant of the box that the server lists among its
            versions, as a laxity box does, or else the server's last version.
        version: The version to request; empty for the server's choice.
        has_batch: Whether tensors there have a batch dimension.
        max_batch: The most items in one batch.
        shrinking: The smaller forms of its inputs that the server can decode.
        knows_exact: Whether the server knows the parameter for an exact answer.
    """

    card: ModelCard
    remote: str
    variant: str
    version: str
    has_batch: bool
    max_batch: int
    shrinking: Shrinking
    knows_exact: bool = False


def agreed(
    card: ModelCard, there: RemoteModel, max_batch: int, undone: frozenset[str] = frozenset()
) -> CloudModel:
    """Matches a model of the box with the same model at a server.

    Args:
        card: The model as the box knows it.
        there: The model as the server describes it.
        max_batch: The most items in one batch.
        undone: The names of the input encodings that the server can decode.

    Raises:
        ValueError: The server's model has other inputs or outputs; the message says which.
    """
    batched = card.signature.batched
    inputs = {tensor.name: tensor for tensor in there.inputs}
    if sorted(inputs) != sorted(spec.name for spec in card.signature.inputs):
        names = ", ".join(sorted(inputs)) or "nothing"
        raise ValueError(f"it takes {names} there")
    outputs = {tensor.name: tensor for tensor in there.outputs}
    free = [
        _check(spec, known.get(spec.name), batched)
        for specs, known in ((card.signature.inputs, inputs), (card.signature.outputs, outputs))
        for spec in specs
    ]
    shared = [name for name in card.variants if name in there.versions]
    variant = shared[0] if shared else (there.versions[-1] if there.versions else UNNAMED)
    most = min(card.max_batch, max_batch) if batched and all(free) else 1
    version = variant if shared else ""
    shrinking = Shrinking(card, undone)
    return CloudModel(
        card, there.name, variant, version, batched, most, shrinking, knows_exact=bool(undone)
    )


def _check(spec: TensorSpec, there: RemoteTensor | None, batched: bool) -> bool:
    """Checks a tensor against the server's; returns whether its batch dimension is free there.

    Raises:
        ValueError: The tensors do not match.
    """
    if there is None:
        raise ValueError(f"it has no tensor {spec.name!r} there")
    if there.datatype != DATATYPES[spec.dtype]:
        raise ValueError(
            f"{spec.name!r} is {there.datatype} there and {DATATYPES[spec.dtype]} here"
        )
    sizes = there.shape[1:] if batched else there.shape
    if batched and (not there.shape or there.shape[0] not in (-1, 1)):
        raise ValueError(
            f"{spec.name!r} is {list(there.shape)} there, without a free batch dimension"
        )
    fits = len(sizes) == len(spec.shape) and all(
        size == -1 or size == here for size, here in zip(sizes, spec.shape, strict=True)
    )
    if not fits:
        here = shape_text(spec.shape)
        raise ValueError(f"{spec.name!r} has items of {list(sizes)} there and {here} here")
    return not batched or there.shape[0] == -1


def stacked(model: CloudModel, batch: Sequence[Submission]) -> list[InputTensor]:
    """The inputs of a batch, with the items one after the other, without copying."""
    specs = model.card.signature.inputs
    if any(spec.dtype == STRING for spec in specs):
        return _stacked_with_text(model, batch)
    tensors = []
    offset = 0
    for name, dtype, shape in batch[0].specs:
        size = math.prod(shape) * DTYPES[dtype]
        parts = [memoryview(each.body)[offset : offset + size] for each in batch]
        sizes = (len(batch), *shape) if model.has_batch else tuple(shape)
        tensors.append(InputTensor(name, DATATYPES[dtype], sizes, parts))
        offset += size + -size % ALIGNMENT
    return tensors


def _stacked_with_text(model: CloudModel, batch: Sequence[Submission]) -> list[InputTensor]:
    """The same for text inputs, whose items differ in length and so in their byte offsets."""
    items = [unpack_tensors(each.specs, each.body) for each in batch]
    tensors = []
    for spec in model.card.signature.inputs:
        arrays = [item[spec.name] for item in items]
        parts = [
            memoryview(
                bytes_of(array.ravel().tolist()) if spec.dtype == STRING else array.tobytes()
            )
            for array in arrays
        ]
        shape = arrays[0].shape
        sizes = (len(batch), *shape) if model.has_batch else shape
        tensors.append(InputTensor(spec.name, DATATYPES[spec.dtype], sizes, parts))
    return tensors


def with_shrunk(tensors: Sequence[InputTensor], shrunk: Shrunk) -> list[InputTensor]:
    """The tensors of a batch, with shrunk ones in place of the originals."""
    return [
        _shrunk(tensor, [item[tensor.name] for item in shrunk.items], shrunk.texts[tensor.name])
        if tensor.name in shrunk.texts
        else tensor
        for tensor in tensors
    ]


def _shrunk(tensor: InputTensor, arrays: Sequence[Array], text: str) -> InputTensor:
    raws = [np.ascontiguousarray(array).data.cast("B") for array in arrays]
    if arrays[0].dtype == np.float16:
        return InputTensor(tensor.name, DATATYPES["float16"], tensor.shape, raws, text)
    parts = [part for raw in raws for part in (len(raw).to_bytes(4, "little"), raw)]
    return InputTensor(tensor.name, "BYTES", (len(raws),), parts, text)


def split(model: CloudModel, outputs: Mapping[str, OutputTensor], count: int) -> list[Packed]:
    """Splits the outputs of a batch by item; a single output is not copied.

    Raises:
        RemoteError: The outputs do not match the model's.
    """
    specs = model.card.signature.outputs
    if any(spec.dtype == STRING for spec in specs):
        return _split_with_text(model, outputs, count)
    rows = [_rows(model, spec, outputs.get(spec.name), count) for spec in specs]
    items: list[Packed] = []
    for index in range(count):
        described = [
            [spec.name, spec.dtype, shape] for spec, (shape, _, _) in zip(specs, rows, strict=True)
        ]
        parts = [raw[index * size : (index + 1) * size] for _, size, raw in rows]
        items.append((described, parts[0] if len(parts) == 1 else memoryview(_padded(parts))))
    return items


def _split_with_text(
    model: CloudModel, outputs: Mapping[str, OutputTensor], count: int
) -> list[Packed]:
    arrays = {
        spec.name: _array(model, spec, outputs.get(spec.name), count)
        for spec in model.card.signature.outputs
    }
    items: list[Packed] = []
    for index in range(count):
        described, buffers = pack_tensors({n: a[index, ...] for n, a in arrays.items()})
        items.append((described, memoryview(b"".join(buffers))))
    return items


def _array(model: CloudModel, spec: TensorSpec, tensor: OutputTensor | None, count: int) -> Array:
    """An output as an array, whose first dimension runs over the items."""
    shape, _, raw = _rows(model, spec, tensor, count)
    if spec.dtype != STRING:
        return np.frombuffer(raw, spec.dtype).reshape(count, *shape)
    try:
        texts = of_elements(spec.name, elements_of(spec.name, raw), (count, *shape))
        check_utf8(spec.name, texts)
    except (InvalidInput, ValueError) as error:
        raise RemoteError(Fault.FAILED, f"answers with invalid text: {error}") from None
    return texts


def _rows(
    model: CloudModel, spec: TensorSpec, tensor: OutputTensor | None, count: int
) -> tuple[list[int], int, memoryview]:
    """The shape of one item, its size in bytes (0 for text), and the bytes of all items."""
    if tensor is None:
        raise RemoteError(Fault.FAILED, f"answers without output {spec.name!r}")
    shape = tensor.shape[1:] if model.has_batch else tensor.shape
    is_text = spec.dtype == STRING
    size = 0 if is_text else math.prod(shape) * DTYPES[spec.dtype]
    fits = (
        tensor.datatype == DATATYPES[spec.dtype]
        and (not model.has_batch or tensor.shape[:1] == (count,))
        and len(shape) == len(spec.shape)
        and all(
            have >= 0 and want in (None, have) for have, want in zip(shape, spec.shape, strict=True)
        )
        and (is_text or len(tensor.raw) == size * count)
    )
    if not fits:
        wanted = shape_text([count] * model.has_batch + [*spec.shape])
        raise RemoteError(
            Fault.FAILED,
            f"output {spec.name!r} came as {tensor.datatype} {list(tensor.shape)} in "
            f"{len(tensor.raw)} bytes, not {DATATYPES[spec.dtype]} {wanted}",
        )
    return list(shape), size, tensor.raw


def _padded(parts: Sequence[memoryview]) -> bytes:
    """One body of several tensors, all but the last padded as in `scheduler.wire`."""
    pieces: list[bytes | memoryview] = []
    padding = 0
    for part in parts:
        pieces.append(bytes(padding))
        pieces.append(part)
        padding = -len(part) % ALIGNMENT
    return b"".join(pieces)
