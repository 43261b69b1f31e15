"""Read a model file's input and output tensors with whichever library can."""

from __future__ import annotations

import re
from pathlib import Path

from workers.memory import name_shortage
from workers.runtimes import onnxruntime, openvino, openvino_graph
from workers.runtimes.base import ModelLoadError
from workers.signatures import FileTensors

# OpenVINO first: it reads both formats without building kernels, and distinguishes a batch
# dimension from one that depends on the data. ONNX Runtime reads files with operators that OpenVINO
# lacks.
_READERS = (
    (openvino.OpenVino(), openvino_graph.read_tensors),
    (onnxruntime.OnnxRuntime(), onnxruntime.read_tensors),
)
_NO_OPERATOR = tuple(
    re.compile(pattern).search
    for pattern in (
        r"No conversion rule found for operations: (\S+?)(?:-\d+)?(?:[,;]|$)",
        r"No Op registered for (\S+)",
        r"Fatal error: (\S+?)(?:\(-?\d+\))? is not a registered function/op",
    )
)
"""The libraries' errors for an unknown operator."""


def read_tensors(path: Path) -> FileTensors:
    """Read the tensors of an `.onnx` or `.xml` file.

    Raises:
        ModelLoadError: No installed library can read it; the message has the reason of each.
    """
    reasons: list[str] = []
    for runtime, read in _READERS:
        if path.suffix not in runtime.suffixes:
            continue
        missing = runtime.missing()
        if missing is not None:
            reasons.append(missing)
            continue
        try:
            return read(path)
        except ModelLoadError as error:
            reasons.append(str(error))
    reason = "; ".join([*_unknown_operators(reasons), *reasons])
    raise ModelLoadError(name_shortage(path, reason))


def _unknown_operators(reasons: list[str]) -> list[str]:
    """Name an unknown operator, if every library failed for that reason."""
    found = [match for reason in reasons for pattern in _NO_OPERATOR if (match := pattern(reason))]
    if not found or len(found) < len(reasons):
        return []
    return [f"no installed runtime knows the operator {found[0].group(1)}"]
