"""TensorRT's Python module as far as it is used, computing with the ONNX reference evaluator.

It stands in for the module `tensorrt` where there is no GPU. Each public name here is one of the
real bindings: `test_tensorrt.py` compares them with `tensorrt_names.json`.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.workers.fake_cuda import FakeCuda
from workers.runtimes.cuda import array_at

__version__ = "10.3.0"

CUDA = FakeCuda()
"""The GPU that engines run on; a test puts its own here."""


REGISTERED: list[Any] = []
"""The loggers with which plugins were registered."""


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    REGISTERED.append(logger)
    return True


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(IntEnum):
    TF32 = 7


class MemoryPoolType(IntEnum):
    WORKSPACE = 0


class TensorLocation(IntEnum):
    DEVICE = 0
    HOST = 1


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    USER_MANAGED = 2


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2

    def log(self, severity: Any, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        if not len(min) == len(opt) == len(max) or any(
            not low <= best <= high for low, best, high in zip(min, opt, max, strict=True)
        ):
            raise ValueError("inconsistent dimensions")
        self._shapes[input] = [tuple(min), tuple(opt), tuple(max)]


class ITimingCache:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def serialize(self) -> bytes:
        return self._content or b"timings of Fake GPU"


class IBuilderConfig:
    def __init__(self) -> None:
        self._flags = {BuilderFlag.TF32}
        self._pools: dict[int, int] = {}
        self._profiles: list[IOptimizationProfile] = []
        self._timings: ITimingCache | None = None
        self.progress_monitor: Any = None

    def set_memory_pool_limit(self, pool: int, pool_size: int) -> None:
        self._pools[pool] = pool_size

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags.discard(flag)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache:
        return ITimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if cache._content and cache._content != b"timings of Fake GPU":
            return False
        self._timings = cache
        return True


class Builder:
    built: Any = None

    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> dict[str, Any]:
        assert REGISTERED
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return {}

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: IBuilderConfig) -> bytes | None:
        Builder.built = config
        config.progress_monitor.phase_start("Tactic selection", None, 2)
        config.progress_monitor.step_complete("Tactic selection", 0)
        config.progress_monitor.phase_finish("Tactic selection")
        if config._pools[MemoryPoolType.WORKSPACE] < 1 << 20:
            self._logger.log(ILogger.Severity.ERROR, "could not find any implementation")
            return None
        profiles = [profile._shapes for profile in config._profiles]
        return json.dumps({"model": network["model"].hex(), "profiles": profiles}).encode()


class ParserError:
    def __init__(self, operator: str, text: str) -> None:
        self._operator, self._text = operator, text

    def node_operator(self) -> str:
        return self._operator

    def desc(self) -> str:
        return self._text


class OnnxParser:
    def __init__(self, network: dict[str, Any], logger: ILogger) -> None:
        self._network = network
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        made = onnx.load(model)
        self._errors = [
            ParserError(node.op_type, "is not supported")
            for node in made.graph.node
            if node.op_type == "NonZero"
        ]
        self._network["model"] = made.SerializeToString()
        return not self._errors


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        assert REGISTERED
        try:
            return ICudaEngine(**json.loads(serialized_engine))
        except ValueError:
            self._logger.log(ILogger.Severity.ERROR, "magicTag does not match")
            return None


class ICudaEngine:
    device_memory_size_v2 = 4096

    def __init__(self, model: str, profiles: list[Any]) -> None:
        self._model = onnx.load_from_string(bytes.fromhex(model))
        self._profiles = profiles
        graph = self._model.graph
        self._inputs = {port.name: port for port in graph.input}
        self._ports = {**self._inputs, **{port.name: port for port in graph.output}}

    @property
    def num_io_tensors(self) -> int:
        return len(self._ports)

    def get_tensor_name(self, index: int) -> str:
        return str(list(self._ports)[index])

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if name == "lengths" else TensorLocation.DEVICE

    def get_tensor_dtype(self, name: str) -> int:
        return int(self._ports[name].type.tensor_type.elem_type)

    def create_execution_context(self, strategy: int) -> IExecutionContext:
        assert strategy == ExecutionContextAllocationStrategy.USER_MANAGED
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._profile: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch: tuple[int, int] | None = None

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2
        self._scratch = (memory, size)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile = self._engine._profiles[profile_index]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._profile[name]
        self._shapes[name] = shape
        return all(low <= dim <= high for low, dim, high in zip(least, shape, most, strict=True))

    def infer_shapes(self) -> list[str]:
        missing = [name for name in self._engine._inputs if name not in self._shapes]
        zeros = {
            name: np.zeros(shape, nptype(self._engine.get_tensor_dtype(name)))
            for name, shape in self._shapes.items()
        }
        if not missing:
            for name, array in self._compute(zeros).items():
                self._shapes[name] = array.shape
        return missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert memory in CUDA.device
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert self._scratch is not None
        assert self._scratch[0] in CUDA.device
        assert self._addresses.keys() == self._engine._ports.keys()
        CUDA.put(stream_handle, self._run)
        return True

    def _run(self) -> None:
        given = {name: self._at(name).copy() for name in self._engine._inputs}
        for name, array in self._compute(given).items():
            self._at(name)[...] = array

    def _at(self, name: str) -> Any:
        assert self._addresses[name] in CUDA.device, "memory that was freed"
        dtype = nptype(self._engine.get_tensor_dtype(name))
        return array_at(self._addresses[name], self._shapes[name], dtype)

    def _compute(self, given: dict[str, Any]) -> dict[str, Any]:
        names = [port.name for port in self._engine._model.graph.output]
        answers = ReferenceEvaluator(self._engine._model).run(names, given)
        return {
            name: np.asarray(array, nptype(self._engine.get_tensor_dtype(name)))
            for name, array in zip(names, answers, strict=True)
        }


def nptype(trt_type: int) -> Any:
    """As the real one; the fake's dtypes are ONNX's."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(trt_type)
    if dtype in (np.float64, np.int16, np.uint16, np.uint32, np.uint64):
        raise TypeError(
            f"Could not resolve TensorRT datatype to an equivalent numpy datatype: {dtype}"
        )
    return dtype.type
