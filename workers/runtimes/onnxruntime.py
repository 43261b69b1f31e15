"""ONNX Runtime on the CPU, and helpers for its sessions on every processor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.core.signature import STRING, TensorSpec
from scheduler.texts import as_text, decoded
from workers.device_options import thread_count
from workers.model import Model, Variant
from workers.runtimes.base import DeviceSpec, ModelLoadError, check_names, one_line
from workers.signatures import FileTensors
from workers.tensors import Array

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(string)": STRING,
}
# Its exceptions repeat its log lines, and a bad request must not flood stderr.
_LOG_FATAL_ONLY = 4
# "/onnxruntime_src/onnxruntime/core/graph/model_load_utils.h:46 void onnxruntime::f(int) ..."
_SOURCE_PLACE = re.compile(r"/onnxruntime_src/\S+:\d+ .*?\) (?=[A-Z\[])")
CPU_PROVIDER = "CPUExecutionProvider"


class OnnxRuntime:
    """Loads `.onnx` files with the CPU execution provider."""

    name = "onnxruntime"
    kinds = frozenset({"cpu"})
    suffixes = frozenset({".onnx"})

    def missing(self) -> str | None:
        """Why the library cannot be imported, or None."""
        try:
            import onnxruntime  # noqa: F401
        except ImportError as error:
            return f"onnxruntime cannot be imported ({one_line(error)}); pip install onnxruntime"
        return None

    def unreachable(self, device: DeviceSpec) -> str | None:
        """None: every build of it runs on the CPU."""
        return None

    def processor(self, device: DeviceSpec) -> str | None:
        """None: the CPU is identified without the library."""
        return None

    def version(self) -> str:
        """The library's version."""
        import onnxruntime

        return str(onnxruntime.__version__)

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> OnnxRuntimeSession:
        """Load a variant; see `Runtime.load`. `cache_dir` is unused: nothing is compiled."""
        options = session_options(threads=thread_count(device))
        session = open_session(variant.path, options, [CPU_PROVIDER])
        require_tensors(session, model)
        max_batch = 1 if variant.fixed_batch else model.max_batch
        return OnnxRuntimeSession(session, model, max_batch)


class OnnxRuntimeSession:
    """A variant loaded by ONNX Runtime."""

    def __init__(self, session: Any, model: Model, max_batch: int) -> None:
        """Use an `InferenceSession` whose tensors are those of the model's signature."""
        self._session = session
        self._inputs = tuple(spec.name for spec in model.signature.inputs)
        self._outputs = [spec.name for spec in model.signature.outputs]
        self._text_inputs = [s.name for s in model.signature.inputs if s.dtype == STRING]
        self._text_outputs = [s.name for s in model.signature.outputs if s.dtype == STRING]
        self.max_batch = max_batch

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Session.run`."""
        return self._run(inputs, None)

    def give_back(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch and free the arena's spare memory; see `Retaining`."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return self._run(inputs, options)

    def _run(self, inputs: Mapping[str, Array], options: Any) -> dict[str, Array]:
        # The library would also accept a weight's name, and override the weight.
        check_names(inputs, self._inputs)
        if self._text_inputs:
            # In an array of bytes, the library reads past an element that fills its whole width.
            given = {name: decoded(inputs[name]).astype(object) for name in self._text_inputs}
            inputs = {**inputs, **given}
        arrays = self._session.run(self._outputs, inputs, options)
        outputs = dict(zip(self._outputs, map(np.asarray, arrays), strict=True))
        for name in self._text_outputs:
            outputs[name] = as_text(name, outputs[name])
        return outputs

    def close(self) -> None:
        """Free the session."""
        self._session = None


def read_tensors(path: Path) -> FileTensors:
    """Read the input and output tensors of an `.onnx` file.

    Raises:
        ModelLoadError: The file is no valid model, or has a tensor that cannot be served.
    """
    session = open_session(path, session_options(optimise=False, threads=1), [CPU_PROVIDER])
    inputs, outputs = session.get_inputs(), session.get_outputs()
    batch_symbols = {node.shape[0] for node in inputs if node.shape}
    return FileTensors(
        inputs=tuple(map(_spec, inputs)),
        outputs=tuple(map(_spec, outputs)),
        outputs_follow_batch=all(node.shape and node.shape[0] in batch_symbols for node in outputs),
    )


def session_options(*, optimise: bool = True, threads: int) -> Any:
    """The `SessionOptions` for a number of threads, where 0 is the library's choice."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_FATAL_ONLY
    # Spinning threads would starve other work on these cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def open_session(path: Path, options: Any, providers: list[Any]) -> Any:
    """Open an `InferenceSession` on execution providers, without falling back to others.

    Raises:
        ModelLoadError: The library cannot load the file with these providers.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=providers, enable_fallback=0
        )
    except Exception as error:  # the library has an exception class per status code, without a base
        raise ModelLoadError(f"onnxruntime: {reason(error)}") from error


def require_tensors(session: Any, model: Model) -> None:
    """Refuse a session that lacks a tensor of the model's signature.

    Raises:
        ModelLoadError: The message names the absent tensors.
    """
    wanted = {spec.name for spec in model.signature.inputs + model.signature.outputs}
    found = {node.name for node in session.get_inputs() + session.get_outputs()}
    if wanted - found:
        raise ModelLoadError(f"onnxruntime finds no tensor {', '.join(sorted(wanted - found))}")


def reason(error: Exception) -> str:
    """The library's error without the source location that raised it."""
    return one_line(_SOURCE_PLACE.sub("", str(error)) or error)


def _spec(node: Any) -> TensorSpec:
    if node.type not in _DTYPES:
        raise ModelLoadError(
            f"tensor '{node.name}' is {node.type}; accepted are {', '.join(_DTYPES.values())}"
        )
    shape = tuple(dim if isinstance(dim, int) else None for dim in node.shape)
    return TensorSpec(node.name, _DTYPES[node.type], shape)
