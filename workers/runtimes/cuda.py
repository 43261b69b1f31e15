"""The part of CUDA's runtime API needed here, through NVIDIA's cuda-python."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.device_options import CUDA_DEVICE
from workers.runtimes.base import one_line
from workers.tensors import Array

_FINAL = frozenset(
    f"cudaError{name}"
    for name in (
        *("Contained", "IllegalAddress", "LaunchTimeout", "Assert", "HardwareStackError"),
        *("IllegalInstruction", "MisalignedAddress", "InvalidAddressSpace", "InvalidPc"),
        *("LaunchFailure", "TensorMemoryLeak", "MpsClientTerminated", "ExternalDevice"),
        *("ECCUncorrectable", "NvlinkUncorrectable", "Unknown"),
    )
)
"""Errors after which "the process must be terminated and relaunched", by the description of
cudaError_t; and the last three, after which a GPU is not to be relied on."""


class CudaError(RuntimeError):
    """A CUDA call failed; the message has the call's name and CUDA's error text.

    Attributes:
        name: CUDA's name of the error, such as `cudaErrorMemoryAllocation`; "" where the call could
            not be made.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name

    @property
    def is_full(self) -> bool:
        """Whether there is no more memory."""
        return self.name == "cudaErrorMemoryAllocation"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """The properties of a GPU on which compiled code depends.

    Attributes:
        name: The driver's name for the GPU.
        compute_capability: For example `8.7`.
        driver: The newest CUDA version that the driver supports, for example `12.6`.
        memory_bytes: Its memory; on a Tegra, the box's memory.
        is_integrated: Whether it shares the box's memory.
    """

    name: str
    compute_capability: str
    driver: str
    memory_bytes: int
    is_integrated: bool

    def __str__(self) -> str:
        """All fields but those of the memory, for a fingerprint."""
        return f"{self.name}, compute capability {self.compute_capability}, CUDA {self.driver}"


class Cuda:
    """Calls of the CUDA runtime, with errors as exceptions."""

    def __init__(self, api: Any = None) -> None:
        """Use `cuda.bindings.runtime`, or a stand-in with the same calls.

        Raises:
            ImportError: cuda-python is not installed.
        """
        if api is None:
            from cuda.bindings import runtime

            api = runtime
        self._api = api

    def fault(self) -> str | None:
        """Why no GPU is available, or None."""
        try:
            count = self._call("cudaGetDeviceCount")
        except CudaError as error:
            is_refused = error.name == "cudaErrorInsufficientDriver"
            return f"{error}{self._why_refused()}" if is_refused else str(error)
        return None if count > CUDA_DEVICE else "CUDA finds no GPU"

    def identity(self) -> GpuIdentity:
        """Which GPU this is."""
        properties = self._call("cudaGetDeviceProperties", CUDA_DEVICE)
        name = properties.name
        version = int(self._call("cudaDriverGetVersion"))
        return GpuIdentity(
            name=name.decode() if isinstance(name, bytes) else str(name),
            compute_capability=f"{properties.major}.{properties.minor}",
            driver=_spelled(version),
            memory_bytes=int(properties.totalGlobalMem),
            is_integrated=bool(properties.integrated),
        )

    def free_bytes(self) -> int:
        """The free GPU memory, in bytes."""
        free, _ = self._call("cudaMemGetInfo")
        return int(free)

    def lost(self) -> str | None:
        """Why this process can no longer use its GPU, or None.

        Any query shows it. Other errors may be those of making CUDA's context, which a new process
        would not mend, such as full memory, or a GPU that another process has for itself.
        """
        try:
            self.free_bytes()
        except CudaError as error:
            return str(error) if error.name in _FINAL else None
        return None

    def sleep_while_waiting(self) -> None:
        """Let the threads of this process sleep while they wait for the GPU.

        By default CUDA keeps their cores busy (cudaDeviceScheduleAuto), on which other devices'
        batches run. Libraries share the process's context, so it holds for all of them.
        """
        self._call("cudaSetDeviceFlags", self._api.cudaDeviceScheduleBlockingSync)

    def create_stream(self) -> Any:
        """Create a stream that does not synchronise with the default one."""
        self._call("cudaSetDevice", CUDA_DEVICE)
        return self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)

    def destroy_stream(self, stream: Any) -> None:
        """Free a stream."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: Any) -> None:
        """Wait until all work queued on a stream is done."""
        self._call("cudaStreamSynchronize", stream)

    def allocate(self, size_bytes: int) -> int:
        """Allocate GPU memory and return its address."""
        return int(self._call("cudaMalloc", size_bytes))

    def free(self, address: int) -> None:
        """Free GPU memory."""
        self._call("cudaFree", address)

    def allocate_pinned(self, size_bytes: int) -> int:
        """Allocate pinned main memory, which the GPU can copy by itself; return its address."""
        return int(self._call("cudaHostAlloc", size_bytes, self._api.cudaHostAllocDefault))

    def free_pinned(self, address: int) -> None:
        """Free pinned memory."""
        self._call("cudaFreeHost", address)

    def copy_in(self, device: int, host: int, size_bytes: int, stream: Any) -> None:
        """Queue a copy from pinned memory to the GPU on a stream."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", device, host, size_bytes, kind, stream)

    def copy_out(self, host: int, device: int, size_bytes: int, stream: Any) -> None:
        """Queue a copy from the GPU to pinned memory on a stream."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", host, device, size_bytes, kind, stream)

    def begin_capture(self, stream: Any) -> None:
        """Record the work that this thread queues on a stream, instead of running it."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """Return the recorded work as a graph ready to launch."""
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def abandon_capture(self, stream: Any) -> None:
        """End a recording after a failure, and forget what was recorded so far."""
        with suppress(CudaError):  # the failure may have ended it
            self._call("cudaGraphDestroy", self._call("cudaStreamEndCapture", stream))

    def launch(self, graph: Any, stream: Any) -> None:
        """Queue a recorded graph on a stream."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        """Free a recorded graph."""
        self._call("cudaGraphExecDestroy", graph)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            error, *values = getattr(self._api, name)(*arguments)
        except RuntimeError as missing:  # cuda-python looks for the libraries at the first call
            raise CudaError(f"{name}: {one_line(missing)}") from missing
        if int(error) != 0:
            error_name, text = self._words(error)
            raise CudaError(f"{name}: {error_name}, {text}", error_name)
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _words(self, error: Any) -> tuple[str, str]:
        _, name = self._api.cudaGetErrorName(error)
        _, text = self._api.cudaGetErrorString(error)
        return _text(name), _text(text)

    def _why_refused(self) -> str:
        """Whether the driver is absent or too old, for which CUDA has the same error."""
        driver = int(self._call("cudaDriverGetVersion"))
        if driver == 0:
            return "; no NVIDIA driver is loaded"
        runtime = int(self._call("cudaRuntimeGetVersion"))
        major = driver // 1000
        return (
            f"; the driver supports CUDA {_spelled(driver)}, and cuda-python is for "
            f"{_spelled(runtime)}: install a newer driver, or pip install 'cuda-python=={major}.*' "
            f"and an onnxruntime-gpu for CUDA {major}"
        )


def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """A view of main memory at an address, as an array that does not own it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(buffer, dtype).reshape(shape)


def gpu_fault() -> str | None:
    """Why this process can use no NVIDIA GPU, or None."""
    try:
        return Cuda().fault()
    except ImportError as error:
        return f"cuda-python cannot be imported ({error}); pip install 'laxity[gpu]'"


def gpu_loss() -> str | None:
    """Why this process can no longer use its GPU, or None; see `Cuda.lost`."""
    try:
        return Cuda().lost()
    except ImportError:
        return None


def gpu_identity() -> GpuIdentity:
    """The identity of the only GPU visible to this process.

    Raises:
        CudaError: There is none.
    """
    return Cuda().identity()


def _spelled(version: int) -> str:
    """CUDA's number of a version, such as 12060, as people write it: `12.6`."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
