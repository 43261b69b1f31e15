"""CUDA's runtime API on main memory: what `cuda.bindings.runtime` answers, without a GPU.

It keeps the rules that matter to a caller: work on a stream is done when the stream is waited
for, a captured stream records instead, memory that was freed is gone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

Work = Callable[[], None]


class Error(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorDevicesUnavailable = 46
    cudaErrorIllegalAddress = 700
    cudaErrorLaunchFailure = 719
    cudaErrorStreamCaptureUnsupported = 900


class FakeCuda:
    """Stands in for the module `cuda.bindings.runtime`."""

    cudaStreamNonBlocking = 1
    cudaHostAllocDefault = 0
    cudaDeviceScheduleBlockingSync = 4
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.memory_bytes = memory_bytes
        self.is_integrated = False
        self.flags = 0
        self.device: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, list[Work]] = {}
        self.capturing: dict[int, list[Work]] = {}
        self.recorded: dict[int, list[Work]] = {}
        self.graphs: list[list[Work]] = []
        self.live_graphs: set[int] = set()
        self.launches = 0

    def cudaGetDeviceCount(self) -> tuple[Error, int]:
        return Error.cudaSuccess, 1

    def cudaGetDeviceProperties(self, device: int) -> tuple[Error, Any]:
        made = SimpleNamespace(
            name=b"Fake GPU",
            major=8,
            minor=7,
            totalGlobalMem=self.memory_bytes,
            integrated=int(self.is_integrated),
        )
        return Error.cudaSuccess, made

    def cudaDriverGetVersion(self) -> tuple[Error, int]:
        return Error.cudaSuccess, 12060

    def cudaRuntimeGetVersion(self) -> tuple[Error, int]:
        return Error.cudaSuccess, 13050

    def cudaMemGetInfo(self) -> tuple[Error, int, int]:
        return Error.cudaSuccess, self.memory_bytes - self.used_bytes(), self.memory_bytes

    def cudaSetDevice(self, device: int) -> tuple[Error]:
        return (Error.cudaSuccess,)

    def cudaSetDeviceFlags(self, flags: int) -> tuple[Error]:
        self.flags = flags
        return (Error.cudaSuccess,)

    def cudaGetErrorName(self, error: Error) -> tuple[Error, bytes]:
        return Error.cudaSuccess, error.name.encode()

    def cudaGetErrorString(self, error: Error) -> tuple[Error, bytes]:
        return Error.cudaSuccess, b"out of memory" if error == 2 else b"operation not permitted"

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Error, int]:
        stream = len(self.streams) + 1
        self.streams[stream] = []
        return Error.cudaSuccess, stream

    def cudaStreamDestroy(self, stream: int) -> tuple[Error]:
        del self.streams[stream]
        return (Error.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Error]:
        if stream in self.capturing:
            return (Error.cudaErrorStreamCaptureUnsupported,)
        waiting, self.streams[stream] = self.streams[stream], []
        for work in waiting:
            work()
        return (Error.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[Error, int]:
        if self.used_bytes() + size > self.memory_bytes:
            return Error.cudaErrorMemoryAllocation, 0
        return Error.cudaSuccess, _allocate(self.device, size)

    def cudaFree(self, address: int) -> tuple[Error]:
        del self.device[address]
        return (Error.cudaSuccess,)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Error, int]:
        return Error.cudaSuccess, _allocate(self.pinned, size)

    def cudaFreeHost(self, address: int) -> tuple[Error]:
        del self.pinned[address]
        return (Error.cudaSuccess,)

    def cudaMemcpyAsync(self, to: int, of: int, size: int, kind: int, stream: int) -> tuple[Error]:
        device, host = (to, of) if kind == 1 else (of, to)

        def check() -> None:
            assert size <= ctypes.sizeof(self.device[device]), "more than that memory of the GPU"
            assert size <= ctypes.sizeof(self.pinned[host]), "more than that pinned memory"

        def copy() -> None:
            check()
            ctypes.memmove(to, of, size)

        check()

        self.put(stream, copy)
        return (Error.cudaSuccess,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[Error]:
        assert not self.streams[stream], "captured while work was waiting"
        self.capturing[stream] = []
        return (Error.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Error, Any]:
        graph = self.capturing.pop(stream)
        self.recorded[id(graph)] = graph
        return Error.cudaSuccess, graph

    def cudaGraphInstantiate(self, graph: list[Work], flags: int) -> tuple[Error, int]:
        self.graphs.append(graph)
        self.live_graphs.add(len(self.graphs) - 1)
        return Error.cudaSuccess, len(self.graphs) - 1

    def cudaGraphDestroy(self, graph: list[Work]) -> tuple[Error]:
        del self.recorded[id(graph)]
        return (Error.cudaSuccess,)

    def cudaGraphExecDestroy(self, graph: int) -> tuple[Error]:
        self.live_graphs.remove(graph)
        return (Error.cudaSuccess,)

    def cudaGraphLaunch(self, graph: int, stream: int) -> tuple[Error]:
        assert graph in self.live_graphs
        self.launches += 1
        self.streams[stream] += self.graphs[graph]
        return (Error.cudaSuccess,)

    def put(self, stream: int, work: Work) -> None:
        """Do work on a stream, or record it."""
        self.capturing.get(stream, self.streams[stream]).append(work)

    def used_bytes(self) -> int:
        return sum(ctypes.sizeof(buffer) for buffer in self.device.values())


def _allocate(where: dict[int, Any], size: int) -> int:
    buffer = (ctypes.c_byte * size)()
    address = ctypes.addressof(buffer)
    where[address] = buffer
    return address
