"""What a model file takes and gives, read with whichever library can."""

from __future__ import annotations

from pathlib import Path

from workers.runtimes import onnxruntime, openvino
from workers.runtimes.base import ModelLoadError
from workers.signatures import FileTensors

# OpenVINO first: it reads both formats, without building kernels, and tells a batch dimension
# from one that depends on the data. ONNX Runtime reads what OpenVINO has no operator for.
_READERS = (
    (openvino.OpenVino(), openvino.read_tensors),
    (onnxruntime.OnnxRuntime(), onnxruntime.read_tensors),
)


def read_tensors(path: Path) -> FileTensors:
    """Read the tensors of an `.onnx` or `.xml` file.

    Raises:
        ModelLoadError: No installed library can read it; the message has each one's reason.
    """
    reasons = []
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
    raise ModelLoadError("; ".join(reasons))
