"""ONNX Runtime on NVIDIA's GPUs, with the CUDA or the TensorRT execution provider."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workers.device_options import CUDA_DEVICE, device_options, thread_count
from workers.model import Model, Variant
from workers.runtimes.base import (
    DeviceSpec,
    ModelLoadError,
    RunError,
    Tell,
    check_names,
    one_line,
    refuse_text,
    shape_of,
)
from workers.runtimes.cuda import Cuda, gpu_fault, gpu_identity, gpu_loss
from workers.runtimes.onnxruntime import (
    CPU_PROVIDER,
    OnnxRuntime,
    open_session,
    require_tensors,
    session_options,
)
from workers.runtimes.shape_plan import one_profile, plan_profiles, spell_profile
from workers.tensors import Array

CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"

_MAX_SHAPES = 16
"""The number of input shapes whose GPU memory is kept; the batch ladder needs about six."""


_OF_SHAPES = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal"),
        *("Expand", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax"),
        *("ReduceMin", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze"),
        *("Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""The operators of which exporters compose arithmetic on shapes.

CUDA's provider has them for the usual dtypes, so one on the CPU is there by preference.
"""


class OnnxRuntimeCuda:
    """Loads `.onnx` files with the CUDA execution provider."""

    name = "onnxruntime-cuda"
    kinds = frozenset({"gpu"})
    suffixes = frozenset({".onnx"})
    provider = CUDA_PROVIDER

    def missing(self) -> str | None:
        """Why this build of the library lacks the provider, or None."""
        missing = OnnxRuntime().missing()
        if missing is not None:
            return missing
        import onnxruntime

        found = onnxruntime.get_available_providers()
        if self.provider in found:
            return None
        return (
            f"this onnxruntime has {', '.join(found)} and no {self.provider}; uninstall "
            "onnxruntime, then pip install 'laxity[gpu]'"
        )

    def unreachable(self, device: DeviceSpec) -> str | None:
        """Why no NVIDIA GPU is available, or None."""
        return gpu_fault()

    def lost(self) -> str | None:
        """See `Losable.lost`."""
        return gpu_loss()

    def processor(self, device: DeviceSpec) -> str | None:
        """The GPU and its driver."""
        return str(gpu_identity())

    def version(self) -> str:
        """The library's version."""
        return OnnxRuntime().version()

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> BoundSession:
        """Load a variant; see `Runtime.load`.

        A model with a node that the GPU cannot run is refused. A session that also computed on the
        CPU would disturb the measurements there, and the runtime's name would be wrong. Arithmetic
        on shapes is no such node: ONNX Runtime prefers the CPU for it (microsoft/onnxruntime pull
        request 4940). Builds before 1.24 do not tell which nodes are where, and refuse it too.
        """
        import onnxruntime

        refuse_text(model, self.provider)
        options = session_options(threads=thread_count(device) or 1)
        tells = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
        entry = "record_ep_graph_assignment_info" if tells else "disable_cpu_ep_fallback"
        options.add_session_config_entry(f"session.{entry}", "1")
        providers = self.providers(model, variant, device, cache_dir)
        Cuda().sleep_while_waiting()
        said = _preload_libraries()
        try:
            session = open_session(variant.path, options, providers)
        except ModelLoadError as error:
            # The library's error then mentions nodes on the CPU, whatever kept it from the GPU.
            raise ModelLoadError(f"{error}{said}") from error
        if self.provider not in session.get_providers():
            raise ModelLoadError(f"onnxruntime could not start {self.provider}{said}")
        foreign = _cpu_operators(session) - _OF_SHAPES if tells else ()
        if foreign:
            names = ", ".join(sorted(foreign))
            raise ModelLoadError(f"onnxruntime has the CPU compute {names}, not {self.provider}")
        require_tensors(session, model)
        max_batch = 1 if variant.fixed_batch else model.max_batch
        return BoundSession(session, model, max_batch)

    def providers(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> list[Any]:
        """The execution providers with their options, in order of preference."""
        return [(CUDA_PROVIDER, cuda_options(device))]


class OnnxRuntimeTensorRt(OnnxRuntimeCuda):
    """Loads `.onnx` files with the TensorRT execution provider, and CUDA for the rest."""

    name = "onnxruntime-tensorrt"
    provider = TENSORRT_PROVIDER

    def missing(self) -> str | None:
        """Why the provider, or the version of TensorRT that it was built for, is missing."""
        return super().missing() or _tensorrt_fault()

    def version(self) -> str:
        """The versions of the library and of TensorRT, on which the stored engines depend."""
        return f"{super().version()} with TensorRT {_tensorrt_version()}"

    def is_built(self, cache_dir: Path) -> bool:
        """Whether the provider has stored engines; see `Builder.is_built`."""
        return any(cache_dir.glob("*.engine"))

    def build(
        self,
        model: Model,
        variant: Variant,
        device: DeviceSpec,
        cache_dir: Path,
        tell: Tell,
    ) -> None:
        """Compile by loading once, as the provider stores its engines; see `Builder.build`."""
        tell("building engines")
        self.load(model, variant, device, cache_dir).close()

    def providers(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> list[Any]:
        """TensorRT's provider, and CUDA's for nodes without a TensorRT layer.

        No precision is enabled, so the provider keeps to the file's own number formats. There is a
        single profile: the provider builds engines with several, but runs only the first
        (microsoft/onnxruntime issue 23965, pull request 31624).
        """
        profile = one_profile(plan_profiles(model, variant, model.max_batch))
        options = {
            "device_id": str(CUDA_DEVICE),
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(cache_dir),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(cache_dir),
            "trt_profile_min_shapes": spell_profile(profile, "least"),
            "trt_profile_opt_shapes": spell_profile(profile, "best"),
            "trt_profile_max_shapes": spell_profile(profile, "most"),
        }
        return [(TENSORRT_PROVIDER, options), (CUDA_PROVIDER, cuda_options(device))]


class _Bound(NamedTuple):
    """The input memory for one set of shapes, and its binding to the session."""

    binding: Any
    values: dict[str, Any]


class BoundSession:
    """A session whose inputs and outputs are bound to a device's memory.

    Without binding, the library would allocate for each run and copy on the default stream.
    """

    def __init__(self, session: Any, model: Model, max_batch: int, memory: str = "cuda") -> None:
        """Use an `InferenceSession`; `memory` is the kind of device that holds its tensors."""
        self.max_batch = max_batch
        self._session = session
        self._specs = {spec.name: np.dtype(spec.dtype) for spec in model.signature.inputs}
        self._names = tuple(self._specs)
        self._outputs = [spec.name for spec in model.signature.outputs]
        self._memory = memory
        self._bound: OrderedDict[tuple[tuple[int, ...], ...], _Bound] = OrderedDict()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Session.run`."""
        check_names(inputs, self._names)
        for name, dtype in self._specs.items():
            if inputs[name].dtype != dtype:
                raise RunError(f"'{name}' as {shape_of(inputs[name])}: the model takes {dtype}")
        if any(array.size == 0 for array in inputs.values()):
            # An empty tensor has no memory to bind.
            arrays = self._session.run(self._outputs, dict(inputs))
            return dict(zip(self._outputs, map(np.asarray, arrays), strict=True))
        bound = self._bind(inputs)
        for name, value in bound.values.items():
            value.update_inplace(np.ascontiguousarray(inputs[name]))
        self._bind_outputs(bound.binding)
        self._session.run_with_iobinding(bound.binding)
        arrays = bound.binding.copy_outputs_to_cpu()
        return dict(zip(self._outputs, map(np.asarray, arrays), strict=True))

    def close(self) -> None:
        """Free the session and its memory on the device."""
        self._bound.clear()
        self._session = None

    def _bind(self, inputs: Mapping[str, Array]) -> _Bound:
        shapes = tuple(inputs[name].shape for name in self._names)
        bound = self._bound.get(shapes)
        if bound is None:
            bound = self._bound[shapes] = self._make(inputs)
            if len(self._bound) > _MAX_SHAPES:
                self._bound.popitem(last=False)
        self._bound.move_to_end(shapes)
        return bound

    def _make(self, inputs: Mapping[str, Array]) -> _Bound:
        import onnxruntime

        binding = self._session.io_binding()
        values = {}
        for name, dtype in self._specs.items():
            value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                list(inputs[name].shape), dtype.type, self._memory, CUDA_DEVICE
            )
            binding.bind_ortvalue_input(name, value)
            values[name] = value
        return _Bound(binding, values)

    def _bind_outputs(self, binding: Any) -> None:
        """Let the library allocate each output of the next run at its actual size.

        Left bound, the memory of the last run's outputs would have to fit, and the size of an
        output can depend on the data.
        """
        binding.clear_binding_outputs()
        for name in self._outputs:
            binding.bind_output(name, self._memory, CUDA_DEVICE)


def cuda_options(device: DeviceSpec) -> dict[str, str]:
    """The options of the CUDA execution provider, as documented on onnxruntime.ai."""
    options = device_options(device)
    found = {
        "device_id": str(CUDA_DEVICE),
        # With growth by powers of two, one model would take memory that the next one needs.
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "1" if options.tf32 else "0",
    }
    if options.gpu_memory_mb is not None:
        found["gpu_mem_limit"] = str(options.gpu_memory_mb * 10**6)
    return found


def _cpu_operators(session: Any) -> set[str]:
    """The types of the nodes that a session has assigned to the CPU."""
    return {
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == CPU_PROVIDER
        for node in part.get_nodes()
    }


def _preload_libraries() -> str:
    """Load CUDA's libraries from pip's packages, if they were installed that way.

    Returns:
        The library's message about the first one not found, to append to an error; or "".
    """
    import onnxruntime

    preload = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if preload is None:
        return ""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        preload()
    lines = [line for line in said.getvalue().splitlines() if line.startswith("Failed to load")]
    if not lines:
        return ""
    return f"; {lines[0]}; if CUDA is not installed, pip install 'onnxruntime-gpu[cuda,cudnn]'"


def _tensorrt_library() -> str | None:
    """The name of the TensorRT library that the provider was built for, or None."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        content = (folder / "libonnxruntime_providers_tensorrt.so").read_bytes()
    except OSError:
        return None  # the library has its own words for it
    found = re.search(rb"libnvinfer\.so\.\d+", content)
    return None if found is None else found[0].decode()


def _load_tensorrt(name: str) -> ctypes.CDLL:
    """Load a library of TensorRT, by pip's package `tensorrt` or by the system.

    Raises:
        OSError: There is none of this name.
    """
    with contextlib.suppress(ImportError, OSError):
        import tensorrt  # noqa: F401  # pip's loads its libraries, from a folder of its own
    return ctypes.CDLL(name)


def _tensorrt_fault() -> str | None:
    """Why the TensorRT that the provider was built for cannot be loaded, or None.

    Each build of ONNX Runtime needs one major version, by the name of its library, and with another
    one would fail each model.
    """
    name = _tensorrt_library()
    if name is None:
        return None
    try:
        _load_tensorrt(name)
    except OSError as error:
        major = int(name.rpartition(".")[2])
        return (
            f"this onnxruntime is built for TensorRT {major} ({one_line(error)}); "
            f"pip install 'tensorrt>={major},<{major + 1}'"
        )
    return None


def _tensorrt_version() -> str:
    """The version of the library, which need not be that of the Python module."""
    name = _tensorrt_library()
    if name is None:
        return "of the system"
    try:
        number = _load_tensorrt(name).getInferLibVersion()  # NvInferRuntimeBase.h
    except (OSError, AttributeError):
        return "of the system"
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
