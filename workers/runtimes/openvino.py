"""OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.core.signature import TensorSpec
from workers.agreement import batch_fault, tolerance_for
from workers.model import Model, Precision, Variant
from workers.runtimes.base import (
    Array,
    DeviceSpec,
    ModelLoadError,
    RunError,
    check_names,
    one_line,
    shape_of,
    thread_count,
)
from workers.sampling import sample_items
from workers.signatures import FileTensors
from workers.stacking import stack_items

_DTYPES = {
    "boolean": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}
# The CPU plugin computes these in int32 and wraps what does not fit, without a word.
_NARROWED = {"int64", "uint64", "uint32"}
_INT32 = np.iinfo(np.int32)


class OpenVino:
    """Loads `.onnx` and OpenVINO `.xml` files with the CPU plugin."""

    name = "openvino"
    kinds = frozenset({"cpu"})
    suffixes = frozenset({".onnx", ".xml"})

    def missing(self) -> str | None:
        """Why the library cannot be imported, or None."""
        try:
            import openvino  # noqa: F401
        except ImportError as error:
            return f"openvino cannot be imported ({error}); pip install openvino"
        return None

    def version(self) -> str:
        """The library's version, build included."""
        import openvino

        return str(openvino.__version__)

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> OpenVinoSession:
        """Load a variant; see `Runtime.load`.

        A file whose batch dimension is fixed at 1 is reshaped to take any batch, and kept so
        if a batch of two then gives the same answers as its items alone.
        """
        doubles = [spec.name for spec in model.signature.inputs if spec.dtype == "float64"]
        if doubles:
            raise ModelLoadError(
                f"OpenVINO's CPU plugin computes float64 in float32, too coarse for input "
                f"'{doubles[0]}'; use onnxruntime or export the model in float32"
            )
        config = _config(variant.precision, device, cache_dir)
        if variant.fixed_batch and model.max_batch > 1:
            session = _load_reshaped(model, variant, device, config)
            if session is not None:
                return session
        max_batch = 1 if variant.fixed_batch else model.max_batch
        graph = _read(variant.path)
        return OpenVinoSession(_compile(graph, config), model, max_batch, device)


class OpenVinoSession:
    """A variant compiled by OpenVINO, with one infer request."""

    def __init__(self, compiled: Any, model: Model, max_batch: int, device: DeviceSpec) -> None:
        """Hold a `CompiledModel` whose tensors are those of the model's signature."""
        import openvino

        self.max_batch = max_batch
        self._tensor_type = openvino.Tensor
        self._request = compiled.create_infer_request()
        self._device = device
        self._inputs = _positions(compiled.inputs, model.signature.inputs)
        self._outputs = _positions(compiled.outputs, model.signature.outputs)
        self._names = tuple(self._inputs)
        self._narrowed = [s.name for s in model.signature.inputs if s.dtype in _NARROWED]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Session.run`."""
        check_names(inputs, self._names)
        for name in self._narrowed:
            _check_int32(name, inputs[name])
        # The request keeps no reference to a shared array, so this list has to.
        shared = [_shareable(inputs[name]) for name in self._names]
        for (name, position), array in zip(self._inputs.items(), shared, strict=True):
            self._bind(name, position, array)
        try:
            self._request.infer(share_outputs=True)
        except Exception as error:  # as above
            raise RunError(_reason(error)) from error
        # Copied, because the next run of this request writes to the same memory.
        return {
            name: self._request.get_output_tensor(position).data.copy()
            for name, position in self._outputs.items()
        }

    def _bind(self, name: str, position: int, array: Array) -> None:
        try:
            tensor = self._tensor_type(array, shared_memory=True)
            self._request.set_input_tensor(position, tensor)
        except Exception as error:  # pybind raises plain RuntimeError, TypeError, ValueError
            raise RunError(f"'{name}' as {shape_of(array)}: {_reason(error)}") from error

    def close(self) -> None:
        """Free the request and with it the compiled model."""
        self._request = None

    def describe(self) -> str:
        """Say what runs where."""
        return f"openvino on {self._device.id}, {thread_count(self._device)} threads"


def read_tensors(path: Path) -> FileTensors:
    """Read what an `.onnx` or `.xml` file takes and gives, without compiling it.

    Raises:
        ModelLoadError: The file is no valid model, or has a tensor that cannot be served.
    """
    graph = _read(path)
    inputs = tuple(map(_spec, graph.inputs))
    outputs = tuple(map(_spec, graph.outputs))
    return FileTensors(inputs, outputs, _outputs_follow_batch(graph))


def _read(path: Path) -> Any:
    try:
        return _core().read_model(path)
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {_reason(error)}") from error


def _core() -> Any:
    import openvino

    return openvino.Core()


def _compile(graph: Any, config: dict[str, Any]) -> Any:
    try:
        return _core().compile_model(graph, "CPU", config)
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {_reason(error)}") from error


def _config(precision: Precision, device: DeviceSpec, cache_dir: Path) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": thread_count(device),
        # The host has pinned itself already, to the cores that its configuration names.
        "ENABLE_CPU_PINNING": False,
        "CACHE_DIR": str(cache_dir),
        "INFERENCE_PRECISION_HINT": _compute_precision(precision),
    }


def _compute_precision(precision: Precision) -> str:
    """Never coarser than the owner declared.

    Left alone, the plugin computes fp32 models in bf16 where the CPU can (2e-2 off on a face
    detector's scores), and takes a wish for f16 as leave for bf16.
    """
    wanted = {"fp16": ("FP16", "f16"), "bf16": ("BF16", "bf16")}.get(precision)
    if wanted and wanted[0] in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return wanted[1]
    return "f32"


def _load_reshaped(
    model: Model, variant: Variant, device: DeviceSpec, config: dict[str, Any]
) -> OpenVinoSession | None:
    graph = _read(variant.path)
    try:
        _set_batch(graph, -1)
        session = OpenVinoSession(_compile(graph, config), model, model.max_batch, device)
        items = sample_items(model, 2)
        batch, alone = stack_items(items), [stack_items([item]) for item in items]
        fault = batch_fault(session.run, batch, alone, tolerance_for(model, variant))
    except Exception:  # a graph that resists reshaping fails anywhere in here, as anything
        return None
    return session if fault is None else None


def _set_batch(graph: Any, size: int) -> None:
    import openvino

    graph.reshape(
        {
            index: openvino.PartialShape([size, *list(port.partial_shape)[1:]])
            for index, port in enumerate(graph.inputs)
        }
    )


def _outputs_follow_batch(graph: Any) -> bool:
    """Whether a batch of two at every input makes two rows of every output.

    It tells a batch dimension from one that depends on the data, such as the number of
    objects found; both are dynamic in the file.
    """
    shapes = [port.partial_shape for port in graph.inputs]
    if any(shape.rank.is_dynamic or len(shape) == 0 for shape in shapes):
        return False
    probe = graph.clone()
    try:
        _set_batch(probe, 2)
    except Exception:  # no batch dimension if the graph cannot take a batch of two
        return False
    return all(_leads_with_two(port.partial_shape) for port in probe.outputs)


def _leads_with_two(shape: Any) -> bool:
    if shape.rank.is_dynamic or len(shape) == 0 or shape[0].is_dynamic:
        return False
    return bool(shape[0].get_length() == 2)


def _name(port: Any) -> str:
    names = port.names
    return str(port.any_name if names else port.node.friendly_name)


def _spec(port: Any) -> TensorSpec:
    name, dtype = _name(port), port.element_type.get_type_name()
    if dtype not in _DTYPES:
        raise ModelLoadError(
            f"tensor '{name}' is {dtype}; accepted are {', '.join(_DTYPES.values())}"
        )
    if port.partial_shape.rank.is_dynamic:
        raise ModelLoadError(
            f"tensor '{name}' has no known number of dimensions; export it with a shape"
        )
    shape = tuple(None if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
    return TensorSpec(name, _DTYPES[dtype], shape)


def _positions(ports: list[Any], specs: tuple[TensorSpec, ...]) -> dict[str, int]:
    found = {
        name: index for index, port in enumerate(ports) for name in port.names or {_name(port)}
    }
    absent = [spec.name for spec in specs if spec.name not in found]
    if absent:
        raise ModelLoadError(f"openvino finds no tensor {', '.join(absent)}")
    return {spec.name: found[spec.name] for spec in specs}


class _ReadOnlyMemory:
    """A read-only array's memory, declared writable."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._owner = array


def _shareable(array: Array) -> Array:
    """The same memory in the form that `openvino.Tensor` shares.

    It refuses read-only arrays, which is what shared-memory channels deliver, although the
    plugin only reads its inputs.
    """
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    return array if array.flags.writeable else np.asarray(_ReadOnlyMemory(array))


def _check_int32(name: str, array: Array) -> None:
    if array.size and not (_INT32.min <= array.min() and array.max() <= _INT32.max):
        raise RunError(
            f"'{name}' holds a value outside {_INT32.min}..{_INT32.max}, "
            "which OpenVINO's CPU plugin would wrap to int32"
        )


def _reason(error: Exception) -> str:
    """An error of the library without the lines that name its own source files."""
    lines = [line for line in str(error).splitlines() if not line.startswith("Exception from ")]
    return one_line(RuntimeError("\n".join(lines) or str(error)))
