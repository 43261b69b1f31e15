"""OpenVINO on the CPU, on Intel's GPUs and on NPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workers.agreement import batch_fault, tolerance_for
from workers.device_options import openvino_name, stream_count, thread_count
from workers.model import Model, Precision, Variant
from workers.runtimes.base import (
    DeviceSpec,
    ModelLoadError,
    RunError,
    check_names,
    refuse_text,
    shape_of,
)
from workers.runtimes.openvino_graph import (
    core,
    fix_shapes,
    positions,
    read_graph,
    reason,
    set_batch,
)
from workers.sampling import sample_items
from workers.stacking import stack_items
from workers.tensors import Array

# The CPU and GPU plugins compute these in int32, and silently wrap values that do not fit.
_NARROWED = {"int64", "uint64", "uint32"}
_INT32 = np.iinfo(np.int32)


class OpenVino:
    """Loads `.onnx` and OpenVINO `.xml` files with the plugin of one explicit device."""

    name = "openvino"
    kinds = frozenset({"cpu", "gpu", "npu"})
    suffixes = frozenset({".onnx", ".xml"})

    def missing(self) -> str | None:
        """Why the library cannot be imported, or None."""
        try:
            import openvino  # noqa: F401
        except ImportError as error:
            return f"openvino cannot be imported ({error}); pip install openvino"
        return None

    def unreachable(self, device: DeviceSpec) -> str | None:
        """Why the library's plugins cannot use a device, or None."""
        wanted, found = openvino_name(device), list(core().available_devices)
        # A single GPU is listed as `GPU` and also accepted as `GPU.0`.
        if wanted in found or wanted.removesuffix(".0") in found:
            return None
        return f"OpenVINO finds no {wanted} here; it finds {', '.join(found)}"

    def processor(self, device: DeviceSpec) -> str | None:
        """The plugin's name for a GPU or NPU; None for a CPU."""
        if device.kind == "cpu":
            return None
        return str(core().get_property(openvino_name(device), "FULL_DEVICE_NAME"))

    def version(self) -> str:
        """The library's version, including its build."""
        import openvino

        return str(openvino.__version__)

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> OpenVinoSession:
        """Load a variant; see `Runtime.load`.

        A file whose batch dimension is fixed at 1 is reshaped to take any batch, and the new shape
        is kept if a batch of two gives the same answers as its items alone. An NPU compiles for
        fixed shapes, so there every free dimension is fixed and items run one at a time.
        """
        refuse_text(model, "OpenVINO")
        doubles = [spec.name for spec in model.signature.inputs if spec.dtype == "float64"]
        if doubles:
            raise ModelLoadError(
                f"OpenVINO computes float64 in float32, too coarse for input "
                f"'{doubles[0]}'; use onnxruntime or export the model in float32"
            )
        config = plugin_config(variant, device, cache_dir)
        graph = read_graph(variant.path)
        if device.kind == "npu":
            fix_shapes(graph, model)
            return OpenVinoSession(_compile(graph, device, config), model, variant, device, 1)
        if variant.fixed_batch and model.max_batch > 1:
            session = _load_reshaped(model, variant, device, config)
            if session is not None:
                return session
        streams = stream_count(device)
        max_batch = min(streams, model.max_batch) if variant.fixed_batch else model.max_batch
        compiled = _compile(graph, device, config)
        return OpenVinoSession(compiled, model, variant, device, max_batch)


class OpenVinoSession:
    """A variant compiled by OpenVINO, with one infer request per stream.

    Attributes:
        max_batch: The largest batch.
        apart: Whether the file cannot take a batch, so that its items run in parallel instead.
    """

    def __init__(
        self, compiled: Any, model: Model, variant: Variant, device: DeviceSpec, max_batch: int
    ) -> None:
        """Use a `CompiledModel` whose tensors are those of the model's signature."""
        import openvino

        self.max_batch = max_batch
        self._tensor_type = openvino.Tensor
        self.apart = variant.fixed_batch and max_batch > 1 and _takes_one(compiled)
        requests = stream_count(device) if self.apart else 1
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(requests)]
        self._stateful = variant.stateful
        self._inputs = positions(compiled.inputs, model.signature.inputs)
        self._outputs = positions(compiled.outputs, model.signature.outputs)
        self._names = tuple(self._inputs)
        self._narrowed = [s.name for s in model.signature.inputs if s.dtype in _NARROWED]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Session.run`."""
        check_names(inputs, self._names)
        for name in self._narrowed:
            _check_int32(name, inputs[name])
        if self.apart and (count := len(inputs[self._names[0]])) > 1:
            return self._run_apart(inputs, count)
        request = self._requests[0]
        # The request keeps no reference to a shared array, so this list must.
        shared = self._bind(request, inputs)
        try:
            request.infer(share_outputs=True)
        except Exception as error:  # the library raises plain RuntimeError
            raise RunError(reason(error)) from error
        del shared
        return self._outputs_of(request)

    def give_back(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch on new requests, as the old ones keep their memory; see `Retaining`."""
        count = len(self._requests)
        self._requests = []
        self._requests = [self._compiled.create_infer_request() for _ in range(count)]
        return self.run(inputs)

    def _run_apart(self, inputs: Mapping[str, Array], count: int) -> dict[str, Array]:
        """Run each item on its own stream, as many at once as there are streams."""
        rows: list[dict[str, Array]] = []
        for first in range(0, count, len(self._requests)):
            busy: list[Any] = []
            shared = []
            try:
                for request, index in zip(self._requests, range(first, count), strict=False):
                    item = {name: array[index : index + 1] for name, array in inputs.items()}
                    shared.append(self._bind(request, item))
                    request.start_async()
                    busy.append(request)
                rows += [self._finished(request) for request in busy]
            except Exception:
                # The other requests still read the shared memory, and busy requests cannot be bound
                # again.
                for request in busy:
                    with contextlib.suppress(Exception):
                        request.wait()
                raise
        return {name: np.concatenate([row[name] for row in rows]) for name in self._outputs}

    def _finished(self, request: Any) -> dict[str, Array]:
        try:
            request.wait()
        except Exception as error:  # the library raises plain RuntimeError
            raise RunError(reason(error)) from error
        return self._outputs_of(request)

    def _bind(self, request: Any, inputs: Mapping[str, Array]) -> list[Array]:
        """Share the inputs with a request; the returned arrays must outlive its run."""
        if self._stateful:
            request.reset_state()  # or an answer would depend on earlier requests
        shared = [_shareable(inputs[name]) for name in self._names]
        for (name, position), array in zip(self._inputs.items(), shared, strict=True):
            try:
                tensor = self._tensor_type(array, shared_memory=True)
                request.set_input_tensor(position, tensor)
            except Exception as error:  # pybind raises plain RuntimeError, TypeError, ValueError
                raise RunError(f"'{name}' as {shape_of(array)}: {reason(error)}") from error
        return shared

    def _outputs_of(self, request: Any) -> dict[str, Array]:
        # Copied, because the next run of this request writes to the same memory.
        return {
            name: request.get_output_tensor(position).data.copy()
            for name, position in self._outputs.items()
        }

    def close(self) -> None:
        """Free the requests and the compiled model."""
        self._requests = []
        self._compiled = None


def _compile(graph: Any, device: DeviceSpec, config: dict[str, Any]) -> Any:
    try:
        return core().compile_model(graph, openvino_name(device), config)
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {reason(error)}") from error


def plugin_config(variant: Variant, device: DeviceSpec, cache_dir: Path) -> dict[str, Any]:
    """The properties with which a variant is compiled for a device.

    Raises:
        ModelLoadError: The device computes in a coarser format than the variant declares, or its
            plugin can't be loaded.
    """
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": str(cache_dir)}
    config["INFERENCE_PRECISION_HINT"] = _compute_precision(variant.precision, device)
    if device.kind == "npu":
        return config
    # Several streams share the cores, so a single run is slower; see `_run_apart`.
    config["NUM_STREAMS"] = stream_count(device) if variant.fixed_batch else 1
    if device.kind == "cpu":
        config["INFERENCE_NUM_THREADS"] = thread_count(device)
        # The host has already pinned itself to its configured cores.
        config["ENABLE_CPU_PINNING"] = False
    return config


def _compute_precision(precision: Precision, device: DeviceSpec) -> str:
    """The precision hint for the plugin, never coarser than the owner declared.

    By default the CPU plugin computes fp32 models in bf16 where the CPU can (2e-2 off on a face
    detector's scores), and treats a hint of f16 as permission for bf16. The GPU plugin computes
    fp32 models in f16. An NPU computes in f16 at most.
    """
    if device.kind == "npu":
        if precision == "fp32":
            raise ModelLoadError(
                "an NPU computes in float16, the variant is declared fp32; declare it "
                "`precision: fp16` if that is precise enough"
            )
        return "f16"
    wanted = {"fp16": ("FP16", "f16"), "bf16": ("BF16", "bf16")}.get(precision)
    try:
        offered = core().get_property(openvino_name(device), "OPTIMIZATION_CAPABILITIES")
    except Exception as error:  # the library raises plain RuntimeError
        raise ModelLoadError(f"openvino: {reason(error)}") from error
    if wanted and wanted[0] in offered:
        return wanted[1]
    return "f32"


def _takes_one(compiled: Any) -> bool:
    shapes = [port.partial_shape for port in compiled.inputs]
    return all(shape.is_static and len(shape) and shape[0].get_length() == 1 for shape in shapes)


def _load_reshaped(
    model: Model, variant: Variant, device: DeviceSpec, config: dict[str, Any]
) -> OpenVinoSession | None:
    graph = read_graph(variant.path)
    try:
        set_batch(graph, -1)
        compiled = _compile(graph, device, config | {"NUM_STREAMS": 1})
        session = OpenVinoSession(compiled, model, variant, device, model.max_batch)
        items = sample_items(model, 2)
        batch, alone = stack_items(items), [stack_items([item]) for item in items]
        fault = batch_fault(session.run, batch, alone, tolerance_for(model, variant))
    except Exception:  # reshaping may fail anywhere here, with any exception
        return None
    return session if fault is None else None


class _ReadOnlyMemory:
    """The memory of a read-only array, declared writable."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._owner = array


def _shareable(array: Array) -> Array:
    """An array that `openvino.Tensor` accepts, on the same memory if it is contiguous.

    `openvino.Tensor` refuses read-only arrays, which is how inputs may arrive, although the plugin
    only reads them.
    """
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    return array if array.flags.writeable else np.asarray(_ReadOnlyMemory(array))


def _check_int32(name: str, array: Array) -> None:
    if array.size and not (_INT32.min <= array.min() and array.max() <= _INT32.max):
        raise RunError(
            f"'{name}' holds a value outside {_INT32.min}..{_INT32.max}, "
            "which OpenVINO would wrap to int32"
        )
