"""Inputs for requests that are known by their class alone, from a box's model signatures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler import InvalidInput, ModelNotFound
from scheduler.core.names import hint
from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING

Inputs = Callable[[RequestClass], Mapping[str, NDArray[Any]]]
"""Makes the inputs of a request."""

MakeInputs = Callable[[Mapping[str, Any]], Inputs]
"""Makes that from what the box says of its models, as `AsyncClient.models` returns it."""

_MOST_KEPT = 1024


def random_inputs(models: Mapping[str, Any], seed: int = 0) -> Inputs:
    """Floats from 0 to 1 by chance, the same for the same class and seed; zeros for the rest.

    Integers are zeros because they may be indices, of which only the model knows the range.
    """
    return _RandomInputs(models, seed)


class _RandomInputs:
    """Inputs of the right names, dtypes and shapes, made once per class.

    A free dimension is as the class has it, or 1.
    """

    def __init__(self, models: Mapping[str, Any], seed: int) -> None:
        self._models = {model["name"]: model for model in models["models"]}
        self._seed = seed
        self._made: dict[RequestClass, dict[str, NDArray[Any]]] = {}

    def __call__(self, kind: RequestClass) -> Mapping[str, NDArray[Any]]:
        """The inputs of a class.

        Raises:
            ModelNotFound: The box has no such model.
            InvalidInput: It takes other inputs than the class has.
        """
        made = self._made.get(kind)
        if made is None:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            made = self._made[kind] = self._inputs(kind)
        return made

    def _inputs(self, kind: RequestClass) -> dict[str, NDArray[Any]]:
        model = self._models.get(kind.model)
        if model is None:
            raise ModelNotFound(
                f"the box has no model {kind.model!r}{hint(kind.model, self._models)}"
            )
        specs = model["inputs"]
        shapes = kind.shapes or [_shape(spec) for spec in specs]
        if len(shapes) != len(specs):
            raise InvalidInput(
                f"model {kind.model!r} takes {len(specs)} inputs, the request has {len(shapes)}"
            )
        return {
            spec["name"]: _random(spec["name"], kind.model, shape, spec["dtype"], self._seed)
            for spec, shape in zip(specs, shapes, strict=True)
        }


def _shape(spec: Mapping[str, Any]) -> list[int]:
    """The smallest shape of an input, as a class has it."""
    sizes = [size or 1 for size in spec["shape"]]
    return [*sizes, 1] if spec["dtype"] == STRING else sizes


def _random(name: str, model: str, shape: Sequence[int], dtype: str, seed: int) -> NDArray[Any]:
    if dtype == STRING:
        return np.full(tuple(shape[:-1]), b"x" * shape[-1])
    if not dtype.startswith("float"):
        return np.zeros(tuple(shape), dtype)
    chance = random.Random(f"{seed} {model} {name} {tuple(shape)}")
    return np.random.default_rng(chance.getrandbits(64)).random(tuple(shape)).astype(dtype)
