"""Tries a model on padded items: whether their answers are the same, and once at each length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from workers.agreement import disagreement
from workers.model import Model, Tolerance
from workers.padding import cut, fill, free_axis, with_length
from workers.tensors import Array, Item


class PaddingTrial:
    """Compares a model's answers to a padded item with its answer to the same item as it is.

    Args:
        model: The model.
        tolerance: How far the answers may differ.
        item: An item; its padded inputs are replaced by others of three quarters of the longest
            length. All integers in these are 1, because a mask of zeros has no defined answer.

    Attributes:
        short: The item as it is.
        expected: The answer to it, once something has given one.
    """

    def __init__(self, model: Model, tolerance: Tolerance, item: Mapping[str, Array]) -> None:
        """Makes the item, short and padded."""
        self._model = model
        self._tolerance = tolerance
        own = {each.input: max(1, each.to[-1] * 3 // 4) for each in model.pad}
        self.short = dict(item) | _inputs(model, own)
        self._padded = dict(item) | _inputs(model, {each.input: each.to[-1] for each in model.pad})
        for each in model.pad:
            fill(self._padded[each.input], self.short[each.input], each.value)
        self.expected: Item | None = None

    def fault(self, run: Callable[[Item], Item]) -> str | None:
        """How the answer to the padded item differs from that to the short one, or None.

        Args:
            run: Runs one item. It gives the expected answer too if there is none yet; a runtime
                that compiles for the padded lengths alone could not.
        """
        if self.expected is None:
            self.expected = {name: np.array(array) for name, array in run(self.short).items()}
        expected, found = self.expected, dict(run(self._padded))
        inputs = {spec.name: spec for spec in self._model.signature.inputs}
        outputs = {spec.name: spec for spec in self._model.signature.outputs}
        for each in self._model.pad:
            own = self.short[each.input].shape[free_axis(inputs[each.input])]
            for name in each.outputs:
                axis = free_axis(outputs[name])
                length = found[name].shape[axis]
                if length != each.to[-1]:
                    return (
                        f"'{name}' is {length} long where '{each.input}' is {each.to[-1]} long; "
                        "take it out of `outputs` in model.yaml"
                    )
                found[name] = cut(found[name], axis, own)
        for name, array in expected.items():
            if found[name].shape != array.shape:
                told = f"'{name}' is {list(found[name].shape)} instead of {list(array.shape)}"
                return (
                    f"padding changes its answers: {told}; take `pad` out of model.yaml, or say "
                    f"`outputs: {{{name}: {{as_long_as: ...}}}}` if it is as long as an input"
                )
        reason = disagreement(found, expected, self._tolerance)
        return reason and (
            f"padding changes its answers: {reason}; name a `value` that the model ignores, or "
            "take `pad` out of model.yaml"
        )


def padded_items(item: Mapping[str, Array], model: Model) -> Iterator[Item]:
    """The item at each length to which its inputs may be padded, the shortest first."""
    steps = max(len(each.to) for each in model.pad) if model.pad else 0
    for step in range(steps):
        yield dict(item) | _inputs(
            model, {each.input: each.to[min(step, len(each.to) - 1)] for each in model.pad}
        )


def _inputs(model: Model, lengths: Mapping[str, int]) -> Item:
    """Inputs of these lengths: integers are 1, floats random."""
    rng = np.random.default_rng(0)
    made: Item = {}
    for spec in model.signature.inputs:
        if spec.name in lengths:
            shape, dtype = with_length(spec, lengths[spec.name]), np.dtype(spec.dtype)
            made[spec.name] = (rng.random(shape) if dtype.kind == "f" else np.ones(shape)).astype(
                dtype
            )
    return made
