"""The wrapper around cuda-python; against the real bindings where they are installed."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

from tests.workers.fake_cuda import Error, FakeCuda
from workers.runtimes.cuda import _FINAL, Cuda, CudaError, array_at, gpu_fault, gpu_loss


def test_a_gpu_says_what_compiled_code_depends_on():
    identity = Cuda(FakeCuda()).identity()

    assert str(identity) == "Fake GPU, compute capability 8.7, CUDA 12.6"
    assert (identity.memory_bytes, identity.is_integrated) == (1 << 30, False)


def test_an_error_has_the_call_and_cudas_words():
    with pytest.raises(CudaError, match="cudaMalloc: cudaErrorMemoryAllocation, out of memory"):
        Cuda(FakeCuda(memory_bytes=10)).allocate(11)


def test_a_copy_goes_there_and_back_in_the_order_of_the_stream():
    card = FakeCuda()
    cuda = Cuda(card)
    stream = cuda.create_stream()
    device, source, target = cuda.allocate(8), cuda.allocate_pinned(8), cuda.allocate_pinned(8)
    array_at(source, (2,), np.float32)[:] = [1, 2]

    cuda.copy_in(device, source, 8, stream)
    cuda.copy_out(target, device, 8, stream)
    cuda.synchronize(stream)

    assert array_at(target, (2,), np.float32).tolist() == [1, 2]
    assert cuda.free_bytes() == (1 << 30) - 8


def test_without_cuda_python_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)

    assert "pip install 'laxity[gpu]'" in (gpu_fault() or "")
    assert gpu_loss() is None


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (Error.cudaSuccess, None),
        (Error.cudaErrorMemoryAllocation, None),
        (Error.cudaErrorDevicesUnavailable, None),  # another process has it for itself
        (Error.cudaErrorIllegalAddress, "cudaMemGetInfo: cudaErrorIllegalAddress, "),
    ],
)
def test_a_gpu_is_lost_to_a_process_after_an_error_that_stays(error, lost):
    class Card(FakeCuda):
        def cudaMemGetInfo(self):
            return error, 0, 0

    assert (Cuda(Card()).lost() or "").startswith(lost or "")
    assert (Cuda(Card()).lost() is None) == (lost is None)


def calls() -> dict[str, int]:
    """The calls of the fake, and how many arguments each takes."""
    found = {name: call for name, call in vars(FakeCuda).items() if name.startswith("cuda")}
    return {
        name: len(inspect.signature(call).parameters) - 1
        for name, call in found.items()
        if inspect.isfunction(call)
    }


def test_every_call_exists_in_the_real_bindings():
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-python")

    assert len(calls()) > 20
    for name, count in calls().items():
        # "cudaMemcpyAsync(dst, src, size_t count, kind: cudaMemcpyKind, stream)"
        head = getattr(runtime, name).__doc__.splitlines()[0]
        given = head.partition("(")[2].rpartition(")")[0]
        assert len(given.split(", ")) * bool(given) == count, head
    assert all(hasattr(runtime, name) for name in vars(FakeCuda) if name.startswith("cuda"))
    _, made = FakeCuda().cudaGetDeviceProperties(0)
    assert all(hasattr(runtime.cudaDeviceProp(), name) for name in vars(made))
    assert all(hasattr(runtime.cudaError_t, name) for name in _FINAL)
    assert hasattr(runtime.cudaMemcpyKind, "cudaMemcpyHostToDevice")
    assert hasattr(runtime.cudaMemcpyKind, "cudaMemcpyDeviceToHost")
    assert hasattr(runtime.cudaStreamCaptureMode, "cudaStreamCaptureModeThreadLocal")


def test_the_real_bindings_errors_become_ours():
    pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-python")
    cuda = Cuda()
    if cuda.fault() is None:
        pytest.skip("there is a GPU, so these calls succeed")

    assert "cudaGetDeviceCount: cudaError" in (cuda.fault() or "")
    for call in (cuda.identity, cuda.create_stream, lambda: cuda.allocate(10)):
        with pytest.raises(CudaError, match="cudaError"):
            call()


def test_a_box_without_a_gpu_says_so():
    class None_(FakeCuda):
        def cudaGetDeviceCount(self):
            return Error.cudaSuccess, 0

    class Failing(FakeCuda):
        def cudaGetDeviceCount(self):
            raise RuntimeError("libcudart.so.13 is not there\nlook elsewhere")

    assert Cuda(FakeCuda()).fault() is None
    assert Cuda(None_()).fault() == "CUDA finds no GPU"
    assert Cuda(Failing()).fault() == (
        "cudaGetDeviceCount: libcudart.so.13 is not there look elsewhere"
    )


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (0, "; no NVIDIA driver is loaded"),
        (
            12060,  # JetPack 6
            "; the driver supports CUDA 12.6, and cuda-python is for 13.5: install a newer "
            "driver, or pip install 'cuda-python==12.*' and an onnxruntime-gpu for CUDA 12",
        ),
    ],
)
def test_a_driver_that_is_absent_or_too_old_is_told_apart(driver, said):
    class Refused(FakeCuda):
        def cudaGetDeviceCount(self):
            return Error.cudaErrorInsufficientDriver, None

        def cudaDriverGetVersion(self):
            return Error.cudaSuccess, driver

    fault = Cuda(Refused()).fault() or ""
    assert fault.startswith("cudaGetDeviceCount: cudaErrorInsufficientDriver, ")
    assert fault.endswith(f"operation not permitted{said}")
