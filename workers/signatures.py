"""Turn the tensors that a model file declares into the signature for requests."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.signature import Signature, TensorSpec, shape_text


@dataclass(frozen=True, slots=True)
class FileTensors:
    """The tensors of a model file as declared, including the leading dimension.

    Attributes:
        inputs: In the file's order; `None` in a shape is a dynamic dimension.
        outputs: In the file's order.
        outputs_follow_batch: True when every output's leading dimension is known to be that of the
            inputs, and not, for example, the number of objects found.
        stateful: True when the model keeps values from one run to the next.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    outputs_follow_batch: bool
    stateful: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of a file's tensors for serving.

    Attributes:
        signature: Inputs and outputs of one item.
        fixed_batch: True when the batch dimension exists and is fixed at 1.
        stateful: As in `FileTensors`.
    """

    signature: Signature
    fixed_batch: bool
    stateful: bool


def interpret(tensors: FileTensors) -> Reading:
    """Find the batch dimension of a model file.

    The first dimension is the batch when it is dynamic in every tensor and the outputs follow
    the inputs, or when it is 1 in every tensor. Otherwise the model takes one item at a time, with
    the declared shapes.
    """
    every = tensors.inputs + tensors.outputs
    leading = [spec.shape[0] if spec.shape else 0 for spec in every]
    dynamic = all(dim is None for dim in leading) and tensors.outputs_follow_batch
    fixed = all(dim == 1 for dim in leading)
    if not (dynamic or fixed):
        plain = Signature(tensors.inputs, tensors.outputs, batched=False)
        return Reading(plain, fixed_batch=False, stateful=tensors.stateful)
    signature = Signature(
        inputs=tuple(map(_item_spec, tensors.inputs)),
        outputs=tuple(map(_item_spec, tensors.outputs)),
        batched=True,
    )
    return Reading(signature, fixed, tensors.stateful)


def difference(
    found: Signature, expected: Signature, of: str = "the model's first variant"
) -> str | None:
    """Describe how two signatures differ, or None when a request for one fits the other.

    Args:
        found: The signature of a file.
        expected: The one that it should have.
        of: What has that one.
    """
    if found.batched != expected.batched:
        have, want = (_batch_words(signature.batched) for signature in (found, expected))
        return f"it has {have}, {of} has {want}"
    pairs = (
        ("inputs", found.inputs, expected.inputs),
        ("outputs", found.outputs, expected.outputs),
    )
    for kind, have_specs, want_specs in pairs:
        if sorted(have_specs, key=_name) != sorted(want_specs, key=_name):
            return f"its {kind} are {_spell(have_specs)}, those of {of} {_spell(want_specs)}"
    return None


def _item_spec(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, spec.shape[1:])


def _name(spec: TensorSpec) -> str:
    return spec.name


def _batch_words(batched: bool) -> str:
    return "a batch dimension" if batched else "no batch dimension"


def _spell(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{shape_text(spec.shape)}" for spec in specs)
