"""Checks outputs that come from elsewhere against what the model gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.core.signature import TensorSpec, fits, travels_as
from scheduler.errors import InvalidInput
from scheduler.wire import body_bytes


def check_outputs(specs: Any, size: int, outputs: Sequence[TensorSpec]) -> None:
    """Checks the outputs of one item.

    Args:
        specs: `[name, dtype, shape]` of each tensor, or anything at all.
        size: The size of their body, in bytes.
        outputs: The model's outputs.

    Raises:
        InvalidInput: They are malformed, or not the outputs of the model.
    """
    if body_bytes(specs) != size:
        raise InvalidInput("the tensors do not fill the body")
    given = {name: (dtype, shape) for name, dtype, shape in specs}
    if len(specs) != len(outputs) or given.keys() != {spec.name for spec in outputs}:
        raise InvalidInput("it has other tensors")
    for spec in outputs:
        dtype, shape = given[spec.name]
        if not travels_as(spec.dtype, dtype) or not fits(shape, spec.shape):
            raise InvalidInput(f"tensor {spec.name!r} is not one that the model gives")
