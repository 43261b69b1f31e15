"""Seeded random inputs for measuring and comparing models."""

from __future__ import annotations

import numpy as np

from scheduler.core.requests import Shapes
from scheduler.core.signature import STRING, TensorSpec
from workers.model import Model
from workers.tensors import Array

_TEXT_CLASS = 16
"""The size class in `RequestClass` of the texts drawn, which have up to 8 bytes."""


def sample_items(model: Model, count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Draw random items that fit a model's signature.

    Floats are in [0, 1), mostly safe under logarithms and roots. Integers are 0 or 1, valid as an
    index into nearly any table. Texts are numbers of up to eight digits. The size of a free
    dimension comes from the model's `profile_shapes`, or else is 1.

    Returns:
        Items without a batch dimension, different from each other.

    Raises:
        MemoryError: There is no room for them.
    """
    rng = np.random.default_rng(seed)
    try:
        return [
            {spec.name: _sample(rng, spec, _shape(model, spec)) for spec in model.signature.inputs}
            for _ in range(count)
        ]
    except ValueError as error:  # how NumPy refuses what exceeds the address space
        raise MemoryError(f"random items of this shape: {error}") from error


def item_shapes(model: Model) -> Shapes:
    """The shapes that `sample_items` draws, in the form of `Offer.item_shapes`."""
    shapes = tuple(_free_shape(model, spec) for spec in model.signature.inputs)
    return shapes if any(shapes) else ()


def _free_shape(model: Model, spec: TensorSpec) -> tuple[int, ...]:
    if None not in spec.shape:
        return ()
    shape = _shape(model, spec)
    return (*shape, _TEXT_CLASS) if spec.dtype == STRING else shape


def _shape(model: Model, spec: TensorSpec) -> tuple[int, ...]:
    configured = model.profile_shapes.get(spec.name)
    return configured or tuple(1 if dim is None else dim for dim in spec.shape)


def _sample(rng: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    if spec.dtype == STRING:
        return rng.integers(0, 10**8, shape).astype("S8")
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
