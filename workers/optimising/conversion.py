"""From a float32 ONNX file to a coarser one, by ONNX Runtime's own tools."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from workers.batches import Item
from workers.runtimes.base import one_line
from workers.stacking import stack_items

Target = Literal["int8", "fp16"]
"""The number formats that can be made."""


class ConversionError(Exception):
    """A file cannot be converted; the message says why and what helps."""


def missing() -> str | None:
    """Why nothing can be converted here, or None."""
    try:
        import onnx  # noqa: F401
        import onnxruntime.quantization  # noqa: F401
    except ImportError as error:
        return (
            f"making variants needs onnx and onnxruntime ({error}): pip install 'laxity[optimize]'"
        )
    return None


def convert(source: Path, target: Path, to: Target, items: Sequence[Item], batched: bool) -> None:
    """Write a coarser version of a file.

    Inputs and outputs keep their dtypes, so that the new file can stand in for the old one.

    Args:
        source: An `.onnx` file that computes in float32.
        target: Where to write.
        to: The number format. `int8` quantises weights and activations (QDQ, per channel), with
            ranges seen while items run; `fp16` computes in float16 throughout.
        items: Tensors by name, without a batch dimension, typical of what will be asked; unused
            for `fp16`.
        batched: Whether the file takes a batch dimension.

    Raises:
        ConversionError: The libraries are absent, or cannot convert the file.
    """
    reason = missing()
    if reason is not None:
        raise ConversionError(reason)
    try:
        _CONVERSIONS[to](source, target, items, batched)
    except Exception as error:  # the tools raise whatever they trip over
        raise ConversionError(f"{source.name} cannot be made {to}: {one_line(error)}") from error


def _to_int8(source: Path, target: Path, items: Sequence[Item], batched: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="laxity-optimize-") as folder:
        inferred = Path(folder, source.name)
        # Symbolic inference would need sympy, and finds no more in models with one free dimension.
        quant_pre_process(source, inferred, skip_symbolic_shape=True)
        quantize_static(
            inferred,
            target,
            _Reader(items, batched),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _to_fp16(source: Path, target: Path, items: Sequence[Item], batched: bool) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


_CONVERSIONS: dict[Target, Callable[[Path, Path, Sequence[Item], bool], None]] = {
    "int8": _to_int8,
    "fp16": _to_fp16,
}


class _Reader:
    """Items, one at a time, as a `CalibrationDataReader` gives them."""

    def __init__(self, items: Sequence[Item], batched: bool) -> None:
        self._items: Iterator[Item] = iter(items)
        self._batched = batched

    def get_next(self) -> dict[str, Any] | None:
        item = next(self._items, None)
        return item and (stack_items([item]) if self._batched else item)
