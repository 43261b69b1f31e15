"""Convert a float32 ONNX file to a coarser one with ONNX Runtime's own tools."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from workers.runtimes.base import one_line
from workers.stacking import stack_items
from workers.tensors import Item

_PER_CHANNEL_OPSET = 13
_WEIGHTS_APART_IR = 4
"""From this version of the ONNX format on, weights need not be inputs."""

_WARNING, _ERROR = 2, 3
"""Severities of ONNX Runtime's log."""

Target = Literal["int8", "fp16"]
"""The number formats that can be made."""


class ConversionError(Exception):
    """A file cannot be converted; the message says why and what helps."""


def missing() -> str | None:
    """Why conversion is not possible here, or None."""
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
        target: The file to write.
        to: The number format. `int8` quantises weights and activations (QDQ, per channel), with the
            ranges observed on `items`; `fp16` computes in float16 throughout.
        items: Tensors by name, without a batch dimension, typical of real requests; unused for
            `fp16`.
        batched: Whether the file takes a batch dimension.

    Raises:
        ConversionError: The libraries are absent, or cannot convert the file.
    """
    reason = missing()
    if reason is not None:
        raise ConversionError(reason)
    try:
        _CONVERSIONS[to](source, target, items, batched)
    except Exception as error:  # the tools raise exceptions of any type
        raise ConversionError(f"{source.name} cannot be made {to}: {one_line(error)}") from error


def _to_int8(source: Path, target: Path, items: Sequence[Item], batched: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="laxity-optimize-") as folder, _quiet():
        modern, inferred = Path(folder, "modern.onnx"), Path(folder, "inferred.onnx")
        _modernise(source, modern)
        # Symbolic inference needs sympy, and finds nothing more with a single free dimension.
        quant_pre_process(modern, inferred, skip_symbolic_shape=True)
        quantize_static(
            inferred,
            target,
            _Reader(items, batched),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _modernise(source: Path, target: Path) -> None:
    """Write a model as today's exporters would; quantising per channel needs opset 13."""
    import onnx
    from onnx import version_converter

    model = onnx.load(source)
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _PER_CHANNEL_OPSET:
        model = version_converter.convert_version(model, _PER_CHANNEL_OPSET)
    onnx.save(_with_weights_apart(model), target)


def _with_weights_apart(model: Any) -> Any:
    """A model whose weights are not inputs as well, without those that no node uses.

    In files from before 2019 weights are also inputs, which a caller could replace: the tools fold
    nothing into them, and keep them as float32 with a cast to float16 at each run. The tools also
    fail on weights that no node uses.
    """
    weights = {weight.name: weight for weight in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    used = set(_names_read(model.graph))
    del model.graph.input[:], model.graph.initializer[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights[name] for name in weights if name in used)
    model.ir_version = max(model.ir_version, _WEIGHTS_APART_IR)
    return model


def _names_read(graph: Any) -> Iterator[str]:
    """The names that the nodes of a graph and its subgraphs read, and the graph's outputs."""
    yield from (output.name for output in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names_read(inner)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the tools' hints, which are for people who call them by hand."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_ERROR)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        onnxruntime.set_default_logger_severity(_WARNING)


def _to_fp16(source: Path, target: Path, items: Sequence[Item], batched: bool) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = _with_weights_apart(onnx.load(source))
    onnx.save(convert_float_to_float16(model, keep_io_types=True), target)


_CONVERSIONS: dict[Target, Callable[[Path, Path, Sequence[Item], bool], None]] = {
    "int8": _to_int8,
    "fp16": _to_fp16,
}


class _Reader:
    """Gives items one at a time, like a `CalibrationDataReader`."""

    def __init__(self, items: Sequence[Item], batched: bool) -> None:
        self._items: Iterator[Item] = iter(items)
        self._batched = batched

    def get_next(self) -> dict[str, Any] | None:
        item = next(self._items, None)
        return item and (stack_items([item]) if self._batched else item)
