"""Compare the outputs of two runs of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from workers.model import Model, Tolerance, Variant
from workers.tensors import Array

Tensors = Mapping[str, Array]

_FULL = Tolerance(rtol=1e-2, atol=1e-3)
_HALF = Tolerance(rtol=5e-2, atol=1e-2)
_QUANTISED = Tolerance(rtol=1e-1, atol=5e-2)
DEFAULT_TOLERANCE: dict[str, Tolerance] = {
    "fp32": _FULL,
    "fp16": _HALF,
    "bf16": _HALF,
    "fp8": _QUANTISED,
    "int8": _QUANTISED,
    "int4": _QUANTISED,
}
"""Tolerance between runtimes by a variant's precision, unless its model sets one."""


def tolerance_for(model: Model, variant: Variant) -> Tolerance:
    """The tolerance for comparing a variant's outputs."""
    return model.tolerance or DEFAULT_TOLERANCE[variant.precision]


def disagreement(found: Tensors, expected: Tensors, tolerance: Tolerance) -> str | None:
    """Describe where two sets of outputs differ by more than a tolerance, or return None.

    The relative part scales with a tensor's largest magnitude, not with each element, because an
    element near zero among large ones carries their rounding error. Infinities and NaNs must be in
    the same places. Integers and booleans are compared as numbers in the same way; texts must be
    equal.
    """
    if found.keys() != expected.keys():
        return f"outputs {sorted(found)} instead of {sorted(expected)}"
    for name, want in expected.items():
        have = found[name]
        if have.shape != want.shape:
            return f"'{name}' has shape {have.shape} instead of {want.shape}"
        if have.dtype.kind == want.dtype.kind == "S":
            if not np.array_equal(have, want):
                return f"'{name}' has different texts"
            continue
        if have.dtype != want.dtype:
            return f"'{name}' is {have.dtype} instead of {want.dtype}"
        gap = _excess(have, want, tolerance)
        if gap is not None:
            return f"'{name}' {gap}"
    return None


def batch_fault(
    run: Callable[[Tensors], Tensors],
    batch: Tensors,
    alone: Sequence[Tensors],
    tolerance: Tolerance,
) -> str | None:
    """Describe how a batch's outputs differ from those of its items run alone, or return None.

    Args:
        run: Runs a batch, as `Session.run` does.
        batch: All items, stacked.
        alone: Each item as a batch of one, in the same order.
        tolerance: How far the outputs may differ.
    """
    together = {name: np.array(array) for name, array in run(batch).items()}
    for name, array in together.items():
        if array.ndim == 0 or len(array) != len(alone):
            return f"'{name}' has shape {array.shape} for a batch of {len(alone)}"
    for index, item in enumerate(alone):
        row = {name: array[index : index + 1] for name, array in together.items()}
        difference = disagreement(row, run(item), tolerance)
        if difference is not None:
            return f"item {index} of a batch of {len(alone)} differs when run alone: {difference}"
    return None


def _excess(have: Array, want: Array, tolerance: Tolerance) -> str | None:
    found, expected = have.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return "has infinities or NaNs in other places"
    found, expected = found[finite], expected[finite]
    if not expected.size:
        return None
    if not np.isfinite(found).all():
        return "has infinities or NaNs in other places"
    allowed = tolerance.atol + tolerance.rtol * float(np.abs(expected).max())
    worst = float(np.abs(found - expected).max())
    return f"is off by {worst:.3g}, allowed is {allowed:.3g}" if worst > allowed else None
