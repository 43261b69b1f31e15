"""The smaller input forms that a `model.yaml` allows, checked against the model's signature."""

from __future__ import annotations

import math

from scheduler.core.signature import Signature, TensorSpec
from workers.model import Encoding, InputForms
from workers.model_yaml import FormEntry, JpegEntry, ModelFile, ModelFileError, nearest

_WIDE = ("float32", "float64")
_PIXELS = ("uint8", "float16", *_WIDE)
_STEPS = 255


def forms_of(content: ModelFile, signature: Signature) -> tuple[InputForms, ...]:
    """The inputs that may be made smaller, and how.

    Raises:
        ModelFileError: An entry names an unknown input, or does not fit its dtype or shape.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    found = []
    for name, entry in content.inputs.items():
        if name not in specs:
            raise ModelFileError(f"inputs: no input '{name}' ({nearest(name, specs)})")
        encodings = tuple(_encoding(specs[name], form) for form in entry.shrink)
        if len({encoding.name for encoding in encodings}) < len(encodings):
            raise ModelFileError(f"inputs.{name}.shrink: a form appears twice")
        if encodings:
            found.append(InputForms(name, encodings))
    return tuple(found)


def _encoding(spec: TensorSpec, form: FormEntry) -> Encoding:
    where = f"inputs.{spec.name}.shrink"
    if (form.float16 is None) == (form.jpeg is None):
        raise ModelFileError(f"{where}: each entry must be either float16 or jpeg")
    if form.jpeg is not None:
        return _jpeg(f"{where}.jpeg", spec, form.jpeg)
    if spec.dtype not in _WIDE:
        raise ModelFileError(f"{where}: float16 is for {' or '.join(_WIDE)}, this is {spec.dtype}")
    return Encoding("float16")


def _jpeg(where: str, spec: TensorSpec, entry: JpegEntry) -> Encoding:
    if spec.dtype not in _PIXELS:
        raise ModelFileError(f"{where}: is for {', '.join(_PIXELS)}, this is {spec.dtype}")
    channels = spec.shape[0 if entry.layout == "NCHW" else -1] if len(spec.shape) == 3 else None
    if channels not in (1, 3):
        raise ModelFileError(
            f"{where}: an item of {entry.layout} has three dimensions, of which "
            f"{'the first' if entry.layout == 'NCHW' else 'the last'} is 1 or 3, "
            f"not {list(spec.shape)}"
        )
    scale, offset = _mapping(where, spec, entry)
    if not {len(scale), len(offset)} <= {1, channels}:
        raise ModelFileError(f"{where}: mean and std must have one number, or one per channel")
    return Encoding("jpeg", entry.quality, entry.layout, scale, offset)


def _mapping(
    where: str, spec: TensorSpec, entry: JpegEntry
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scale and offset that turn an 8-bit step into the input's value."""
    said = [each is not None for each in (entry.range, entry.mean, entry.std)]
    if spec.dtype == "uint8":
        if any(said):
            raise ModelFileError(f"{where}: a uint8 input takes neither range nor mean and std")
        return (1.0,), (0.0,)
    if said not in ([True, False, False], [False, True, True]):
        raise ModelFileError(
            f"{where}: needs range, such as [0, 1], or mean and std, which say what 8 bits "
            f"mean in {spec.dtype}"
        )
    if entry.range is not None:
        low, high = entry.range
        if not math.isfinite(high - low) or low == high:
            raise ModelFileError(
                f"{where}.range: needs two different finite numbers, found {entry.range}"
            )
        return ((high - low) / _STEPS,), (low,)
    mean, std = entry.mean or [], entry.std or []
    if not all(map(math.isfinite, (*mean, *std))) or len(mean) != len(std):
        raise ModelFileError(f"{where}: mean and std must have equally many finite numbers")
    return (
        tuple(1 / (_STEPS * deviation) for deviation in std),
        tuple(-middle / deviation for middle, deviation in zip(mean, std, strict=True)),
    )
