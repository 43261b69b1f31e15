"""A TensorRT engine in use: its memory, and a CUDA graph for each set of input shapes."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workers.model import Model
from workers.runtimes.base import ModelLoadError, RunError, check_names, one_line, shape_of
from workers.runtimes.cuda import Cuda, CudaError, array_at
from workers.runtimes.shape_plan import Profile, profile_for
from workers.runtimes.tensorrt_log import error_logger, last, register_plugins
from workers.tensors import Array

_MAX_LANES = 16
"""The number of input shapes that keep their memory and CUDA graph."""

Shapes = tuple[tuple[int, ...], ...]


class _FullError(RunError):
    """TensorRT has no room for another execution context."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with the objects that must outlive it, and the errors that its logger got."""

    engine: Any
    runtime: Any
    logger: Any
    said: list[str]


def open_engine(trt: Any, content: bytes) -> Engine:
    """Deserialise an engine.

    Raises:
        ModelLoadError: It is for another GPU or version, or damaged.
    """
    said: list[str] = []
    logger = error_logger(trt, said)
    register_plugins(trt)
    try:
        runtime = trt.Runtime(logger)
        engine = runtime.deserialize_cuda_engine(content)
    except (TypeError, RuntimeError) as error:  # how its bindings report a null pointer
        said.append(one_line(error))
        engine = None
    if engine is None:
        raise ModelLoadError(f"TensorRT rejects the engine: {last(said) or 'it gave no reason'}")
    return Engine(engine, runtime, logger, said)


@dataclass(slots=True)
class _Tensor:
    """One input or output of a lane: its buffers in main memory and on the GPU."""

    name: str
    host: Array
    host_address: int
    device_address: int
    size_bytes: int


@dataclass(slots=True)
class _Lane:
    """Everything that runs with one set of input shapes need, made once.

    Each lane has its own execution context, because NVIDIA advises one per captured graph.
    """

    context: Any
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    graph: Any = None
    closers: list[Callable[[], None]] = field(default_factory=list)


class TensorRtSession:
    """A variant as a TensorRT engine, with pinned buffers and a CUDA graph per input shape."""

    def __init__(
        self,
        trt: Any,
        cuda: Cuda,
        engine: Engine,
        model: Model,
        profiles: list[Profile],
        max_batch: int,
    ) -> None:
        """Use an engine whose tensors are those of the model's signature.

        Raises:
            ModelLoadError: The tensors differ, or one must be in main memory.
            CudaError: The GPU has no room for the engine's scratch space.
        """
        self.max_batch = max_batch
        self._trt = trt
        self._cuda = cuda
        self._engine: Engine | None = engine
        self._profiles = profiles
        self._dtypes = _dtypes(trt, engine.engine, model)
        self._names = tuple(spec.name for spec in model.signature.inputs)
        self._outputs = tuple(spec.name for spec in model.signature.outputs)
        self._stream = cuda.create_stream()
        # Runs never overlap, so the lanes can share it.
        self._scratch_bytes = int(engine.engine.device_memory_size_v2)
        try:
            self._scratch = cuda.allocate(max(self._scratch_bytes, 1))
        except CudaError:
            cuda.destroy_stream(self._stream)
            raise
        self._lanes: OrderedDict[Shapes, _Lane] = OrderedDict()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Session.run`."""
        check_names(inputs, self._names)
        for name in self._names:
            if inputs[name].dtype != self._dtypes[name]:
                found = shape_of(inputs[name])
                raise RunError(f"'{name}' as {found}: the model takes {self._dtypes[name]}")
        lane = self._lane(tuple(inputs[name].shape for name in self._names))
        for tensor in lane.inputs:
            np.copyto(tensor.host, inputs[tensor.name])
        try:
            self._launch(lane)
            self._cuda.synchronize(self._stream)
        except CudaError as error:
            raise RunError(f"tensorrt: {error}") from error
        # Copied, because the next run of this lane writes to the same memory.
        return {tensor.name: tensor.host.copy() for tensor in lane.outputs}

    def close(self) -> None:
        """Free the lanes, the scratch space, the stream and the engine."""
        while self._lanes:
            _, lane = self._lanes.popitem()
            self._close_lane(lane)
        if self._engine is not None:
            self._cuda.free(self._scratch)
            self._cuda.destroy_stream(self._stream)
        self._engine = None

    def _launch(self, lane: _Lane) -> None:
        if lane.graph is not None:
            self._cuda.launch(lane.graph, self._stream)
        else:
            self._enqueue(lane)

    def _enqueue(self, lane: _Lane) -> None:
        for tensor in lane.inputs:
            self._cuda.copy_in(
                tensor.device_address, tensor.host_address, tensor.size_bytes, self._stream
            )
        if not lane.context.execute_async_v3(int(self._stream)):
            raise self._refusal("tensorrt could not enqueue the run")
        for tensor in lane.outputs:
            self._cuda.copy_out(
                tensor.host_address, tensor.device_address, tensor.size_bytes, self._stream
            )

    def _lane(self, shapes: Shapes) -> _Lane:
        lane = self._lanes.get(shapes)
        if lane is None:
            lane = self._lanes[shapes] = self._open_in_room(shapes)
            if len(self._lanes) > _MAX_LANES:
                self._close_oldest()
        self._lanes.move_to_end(shapes)
        return lane

    def _open_in_room(self, shapes: Shapes) -> _Lane:
        """Open a lane, on a full GPU in place of those that were used least recently."""
        while True:
            try:
                return self._open_lane(dict(zip(self._names, shapes, strict=True)))
            except CudaError as error:
                if not error.is_full or not self._lanes:
                    raise
            except _FullError:
                if not self._lanes:
                    raise
            self._close_oldest()

    def _close_oldest(self) -> None:
        _, oldest = self._lanes.popitem(last=False)
        self._close_lane(oldest)

    def _open_lane(self, shapes: dict[str, tuple[int, ...]]) -> _Lane:
        if self._engine is None:
            raise RunError("the session is closed")
        profile = profile_for(self._profiles, shapes)
        if profile is None:
            given = ", ".join(f"'{name}' of {list(shape)}" for name, shape in shapes.items())
            raise RunError(f"{given}: no profile of the engine covers these shapes")
        lane = _Lane(self._context(self._engine.engine, profile, shapes), [], [])
        try:
            for name in self._names:
                lane.inputs.append(self._place(lane, name, shapes[name]))
            for name in self._outputs:
                shape = tuple(int(dim) for dim in lane.context.get_tensor_shape(name))
                if min(shape, default=0) < 0:
                    raise RunError(f"output '{name}' has a shape that depends on the data")
                lane.outputs.append(self._place(lane, name, shape))
            self._capture(lane)
        except BaseException:
            self._close_lane(lane)
            raise
        return lane

    def _close_lane(self, lane: _Lane) -> None:
        """Free a lane after the stream is done with its memory; a run may have failed halfway."""
        with suppress(CudaError):  # from work on the stream; the memory must be freed anyway
            self._cuda.synchronize(self._stream)
        while lane.closers:
            lane.closers.pop()()
        lane.context = None

    def _refusal(self, what: str) -> RunError:
        """An error for what TensorRT refused, with the reason that its logger got meanwhile."""
        said = [] if self._engine is None else self._engine.said
        why = last(said)
        said.clear()
        return RunError(what if why is None else f"{what}: {why}")

    def _context(self, engine: Any, profile: int, shapes: dict[str, tuple[int, ...]]) -> Any:
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = engine.create_execution_context(strategy)
        if context is None:
            said = self._refusal("tensorrt has no room for another execution context")
            raise _FullError(str(said))
        context.set_device_memory(self._scratch, self._scratch_bytes)
        if not context.set_optimization_profile_async(profile, int(self._stream)):
            raise self._refusal(f"tensorrt does not take its profile {profile}")
        self._cuda.synchronize(self._stream)
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._refusal(f"tensorrt does not take '{name}' of {list(shape)}")
        unknown = context.infer_shapes()
        if unknown:
            raise RunError(f"tensorrt cannot tell the shapes of {', '.join(unknown)}")
        return context

    def _place(self, lane: _Lane, name: str, shape: tuple[int, ...]) -> _Tensor:
        dtype = self._dtypes[name]
        size = int(np.prod(shape)) * dtype.itemsize
        # An empty tensor needs an address too: TensorRT accepts no null.
        device = self._cuda.allocate(max(size, 1))
        lane.closers.append(lambda: self._cuda.free(device))
        host = self._cuda.allocate_pinned(max(size, 1))
        lane.closers.append(lambda: self._cuda.free_pinned(host))
        if not lane.context.set_tensor_address(name, device):
            raise self._refusal(f"tensorrt does not take an address for '{name}'")
        array = array_at(host, shape, dtype) if size else np.empty(shape, dtype)
        return _Tensor(name, array, host, device, size)

    def _capture(self, lane: _Lane) -> None:
        """Record a run as a CUDA graph, if the engine allows it.

        A run before the recording updates the context's state, as NVIDIA requires. Engines with
        loops or conditions cannot be recorded; each of their runs is enqueued again.
        """
        for tensor in lane.inputs:
            ctypes.memset(tensor.host_address, 0, tensor.size_bytes)
        self._enqueue(lane)
        self._cuda.synchronize(self._stream)
        try:
            self._cuda.begin_capture(self._stream)
            try:
                self._enqueue(lane)
            except BaseException:
                self._cuda.abandon_capture(self._stream)
                raise
            graph = self._cuda.end_capture(self._stream)
        except (CudaError, RunError):
            return
        lane.graph = graph
        lane.closers.append(lambda: self._cuda.destroy_graph(graph))


def _dtypes(trt: Any, engine: Any, model: Model) -> dict[str, np.dtype[Any]]:
    """The tensors' dtypes, after checking them against the signature."""
    found = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
    dtypes = {}
    for spec in model.signature.inputs + model.signature.outputs:
        if spec.name not in found:
            raise ModelLoadError(f"tensorrt finds no tensor {spec.name}")
        if engine.get_tensor_location(spec.name) != trt.TensorLocation.DEVICE:
            raise ModelLoadError(
                f"'{spec.name}' decides shapes, and TensorRT wants it in main memory; make it a "
                "constant of the model"
            )
        try:
            dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(spec.name)))
        except TypeError as error:  # for formats that NumPy lacks, such as fp8
            raise ModelLoadError(f"'{spec.name}': {one_line(error)}") from error
        if dtype != np.dtype(spec.dtype):
            raise ModelLoadError(f"TensorRT has '{spec.name}' as {dtype}, the file {spec.dtype}")
        dtypes[spec.name] = dtype
    return dtypes
