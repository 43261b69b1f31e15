"""Inputs for requests of which only the class is known, made from a box's model signatures."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler import InvalidInput, ModelNotFound
from scheduler.core.names import did_you_mean
from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING

Inputs = Callable[[RequestClass], Mapping[str, NDArray[Any]]]
"""Makes the inputs of a request of a class."""

MakeInputs = Callable[[Mapping[str, Any]], Inputs]
"""Makes such a function from the box's report of its models, as of `AsyncClient.models`."""

_MOST_KEPT = 1024


def random_inputs(models: Mapping[str, Any], seed: int = 0, needed: Iterable[str] = ()) -> Inputs:
    """Random floats from 0 to 1, the same for the same class and seed; zeros for other dtypes.

    Integers are zeros because they may be indices, whose range only the model knows.

    Args:
        models: The box's report of its models.
        seed: The seed.
        needed: The models that are sure to be requested. Without one of them, each of its requests
            would fail, and a long run would tell it only at its end.

    Raises:
        ModelNotFound: The box lacks a model that is needed.
    """
    inputs = _RandomInputs(models, seed)
    for name in needed:
        inputs.model(name)
    return inputs


class _RandomInputs:
    """Inputs with the right names, dtypes and shapes, made once per class.

    A free dimension has the size it has in the class, or 1.
    """

    def __init__(self, models: Mapping[str, Any], seed: int) -> None:
        self._models = {model["name"]: model for model in models["models"]}
        self._seed = seed
        self._made: dict[RequestClass, dict[str, NDArray[Any]]] = {}

    def __call__(self, kind: RequestClass) -> Mapping[str, NDArray[Any]]:
        """The inputs of a class.

        Raises:
            ModelNotFound: The box has no such model.
            InvalidInput: The model takes another number of inputs than the class has.
        """
        made = self._made.get(kind)
        if made is None:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            made = self._made[kind] = self._inputs(kind)
        return made

    def model(self, name: str) -> Mapping[str, Any]:
        """The description of a model.

        Raises:
            ModelNotFound: The box has no such model.
        """
        model: Mapping[str, Any] | None = self._models.get(name)
        if model is None:
            meant = did_you_mean(name, self._models)
            raise ModelNotFound(f"the box has no model {name!r}; {meant}")
        return model

    def _inputs(self, kind: RequestClass) -> dict[str, NDArray[Any]]:
        specs = self.model(kind.model)["inputs"]
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
    """The smallest shape of an input, in the form that a class uses."""
    sizes = [size or 1 for size in spec["shape"]]
    return [*sizes, 1] if spec["dtype"] == STRING else sizes


def _random(name: str, model: str, shape: Sequence[int], dtype: str, seed: int) -> NDArray[Any]:
    if dtype == STRING:
        return np.full(tuple(shape[:-1]), b"x" * shape[-1])
    if not dtype.startswith("float"):
        return np.zeros(tuple(shape), dtype)
    chance = random.Random(f"{seed} {model} {name} {tuple(shape)}")
    return np.random.default_rng(chance.getrandbits(64)).random(tuple(shape)).astype(dtype)
