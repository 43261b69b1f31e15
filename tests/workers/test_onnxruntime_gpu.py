"""What of ONNX Runtime's GPU path can run without a GPU: options, bindings, refusals."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.workers import onnx_models
from tests.workers.fake_cuda import FakeCuda
from workers.device_options import DeviceOptions, cuda_name, expose_gpu, openvino_name
from workers.runtimes import onnxruntime_gpu
from workers.runtimes.base import DeviceError, DeviceSpec, ModelLoadError, RunError
from workers.runtimes.cuda import Cuda
from workers.runtimes.onnxruntime_gpu import (
    BoundSession,
    OnnxRuntimeCuda,
    OnnxRuntimeTensorRt,
    _preload_libraries,
    cuda_options,
)
from workers.runtimes.tensorrt import TensorRt

onnxruntime = pytest.importorskip("onnxruntime")

GPU = DeviceSpec("gpu:0", "gpu")


@pytest.fixture
def bound(add, load):
    """A session with its tensors bound, on the CPU: the same code with another kind of memory."""

    def bind(made) -> BoundSession:
        file = add("model", made)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return BoundSession(session, load("model"), 32, memory="cpu")

    return bind


def test_bound_inputs_are_the_ones_of_each_run(bound):
    session = bound(onnx_models.two_by_two())

    for run, batch in enumerate((1, 4, 2, 1, 4)):
        a = np.full((batch, 3), run, np.float32)
        b = np.arange(3 * batch, dtype=np.int32).reshape(batch, 3)
        outputs = session.run({"a": a, "b": b})
        assert list(outputs) == ["sum", "total"]
        np.testing.assert_array_equal(outputs["sum"], a + b)
        np.testing.assert_array_equal(outputs["total"], a.sum(axis=1))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float64"])
def test_bound_dtypes_pass_through_unchanged(bound, dtype):
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(dtype)

    y = bound(onnx_models.passes_on(dtype)).run({"x": x})["y"]

    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, (~x if dtype == "bool" else x).reshape(2, 2, 2))


def test_bound_outputs_outlive_the_next_run_and_inputs_may_be_strided(bound):
    session = bound(onnx_models.relu())
    strided = np.array([[1, 9, 2, 9, -3, 9]], np.float32)[:, ::2]

    first = session.run({"x": strided})["y"]
    session.run({"x": np.full((1, 3), 7, np.float32)})

    np.testing.assert_array_equal(first, [[1, 2, 0]])


def test_bound_outputs_have_the_size_that_each_run_computes(bound):
    session = bound(onnx_models.found_objects())

    for row in ([1, 0, 2], [0, 3, 0], [0, 0, 0], [4, 5, 6]):
        places = session.run({"x": np.array([row], np.float32)})["y"]
        np.testing.assert_array_equal(places, np.argwhere([row]))


def test_bound_memory_is_kept_for_the_latest_shapes_alone(bound):
    session = bound(onnx_models.sequence())

    for length in range(1, 40):
        ids = np.arange(length).reshape(1, length)
        np.testing.assert_array_equal(session.run({"ids": ids})["sum"], ids.sum(axis=1))

    assert len(session._bound) == 16


def test_a_bound_session_refuses_another_dtype_and_takes_an_empty_batch(bound):
    session = bound(onnx_models.relu())

    with pytest.raises(RunError, match=r"'x' as float64\[1, 3\]: the model takes float32"):
        session.run({"x": np.zeros((1, 3))})
    assert session.run({"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 3)


def test_cuda_options_hold_the_devices_limits():
    plain = cuda_options(GPU)
    limited = cuda_options(DeviceSpec("gpu:0", "gpu", options={"gpu_memory_mb": 2, "tf32": True}))

    assert (plain["device_id"], plain["use_tf32"]) == ("0", "0")
    assert "gpu_mem_limit" not in plain
    assert (limited["gpu_mem_limit"], limited["use_tf32"]) == ("2000000", "1")


def test_tensorrts_provider_gets_one_profile_caches_and_cuda_for_the_rest(add, load, tmp_path):
    yaml = "max_batch: 4\nvariants: {a: {file: model.onnx, precision: fp16}}"
    add("relu", onnx_models.relu(), yaml)
    model = load("relu")

    (name, options), (second, _) = OnnxRuntimeTensorRt().providers(
        model, model.variants[0], GPU, tmp_path
    )

    assert (name, second) == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "1"
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == str(tmp_path)
    # Of several profiles it would run only the first, so that every batch but one of 1 would fail.
    assert options["trt_profile_min_shapes"] == "x:1x3"
    assert options["trt_profile_opt_shapes"] == options["trt_profile_max_shapes"] == "x:4x3"
    # Any of these would let it compute coarser than the file says.
    assert not any(f"trt_{kind}_enable" in options for kind in ("fp16", "bf16", "int8"))


@pytest.mark.parametrize("runtime", [OnnxRuntimeCuda(), OnnxRuntimeTensorRt()])
def test_a_session_that_would_compute_on_the_cpu_is_refused(
    add, load, tmp_path, runtime, monkeypatch
):
    """Without a GPU the library would quietly take the CPU; with the provider's options on."""
    monkeypatch.setattr(onnxruntime_gpu, "Cuda", lambda: Cuda(FakeCuda()))
    if runtime.missing() is None and runtime.unreachable(GPU) is None:
        pytest.skip("there is a GPU, on which it would load")
    add("relu", onnx_models.relu())
    model = load("relu")

    with pytest.raises(ModelLoadError, match="onnxruntime"):
        runtime.load(model, model.variants[0], GPU, tmp_path)


def test_a_cuda_library_that_cannot_be_found_is_named(monkeypatch):
    def preload() -> None:
        print("Failed to load libcublasLt.so.13: no such file\nPlease follow https://...")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    assert _preload_libraries() == (
        "; Failed to load libcublasLt.so.13: no such file; if CUDA is not installed, "
        "pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )

    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    assert _preload_libraries() == ""

    monkeypatch.delattr(onnxruntime, "preload_dlls")  # as before 1.21
    assert _preload_libraries() == ""


def test_a_build_without_the_provider_says_what_to_install():
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the provider")

    assert "no CUDAExecutionProvider" in (OnnxRuntimeCuda().missing() or "")
    assert "pip install 'laxity[gpu]'" in (OnnxRuntimeTensorRt().missing() or "")


def test_a_worker_sees_its_own_gpu_alone():
    environ = {"CUDA_VISIBLE_DEVICES": ""}  # as Ray leaves it for an actor that asks for no GPU
    mig = DeviceSpec("gpu:3", "gpu", options={"cuda": "MIG-6a7b", "share": 0.5, "gpu_memory_mb": 9})

    expose_gpu(mig, environ)

    assert environ == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "MIG-6a7b",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8M",  # of 2^20 bytes, from 9 of 10^6
    }
    expose_gpu(DeviceSpec("cpu:0", "cpu"), environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "MIG-6a7b"


def test_tf32_is_left_to_the_libraries_where_it_is_allowed():
    environ: dict[str, str] = {}

    expose_gpu(DeviceSpec("gpu:0", "gpu", options={"tf32": True}), environ)

    assert "NVIDIA_TF32_OVERRIDE" not in environ


def test_devices_have_the_names_of_their_libraries():
    assert cuda_name(DeviceSpec("gpu:2", "gpu")) == "2"
    assert cuda_name(DeviceSpec("gpu:2", "gpu", options={"cuda": 0})) == "0"
    assert openvino_name(DeviceSpec("gpu:1", "gpu")) == "GPU.1"
    assert openvino_name(DeviceSpec("npu:0", "npu")) == "NPU.0"
    assert openvino_name(DeviceSpec("cpu:3", "cpu")) == "CPU"
    assert openvino_name(DeviceSpec("gpu:1", "gpu", options={"openvino": "GPU.0"})) == "GPU.0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cuda_device": 0}, r"unknown option 'cuda_device' \((did you mean|known are)"),
        ({"share": 1.5}, "option 'share': Input should be less than or equal to 1"),
        ({"streams": 0}, "option 'streams'"),
    ],
)
def test_a_wrong_option_is_an_error(options, said):
    with pytest.raises(DeviceError, match=said):
        cuda_name(DeviceSpec("gpu:0", "gpu", options=options))


def test_every_option_is_described():
    documented = DeviceOptions.__doc__ or ""
    assert all(f"{name}:" in documented for name in DeviceOptions.model_fields)


def test_what_a_profile_depends_on_is_named(monkeypatch):
    monkeypatch.setattr(onnxruntime_gpu, "gpu_identity", lambda: "A2, driver 580")
    monkeypatch.setattr(onnxruntime_gpu, "gpu_fault", lambda: "no driver")
    monkeypatch.setattr(onnxruntime_gpu, "gpu_loss", lambda: "illegal access")
    runtime = OnnxRuntimeCuda()
    assert runtime.lost() == "illegal access"
    assert (runtime.processor(GPU), runtime.unreachable(GPU)) == ("A2, driver 580", "no driver")
    assert runtime.version() == onnxruntime.__version__
    assert OnnxRuntimeTensorRt().version().endswith("with TensorRT of the system")


def test_a_box_without_the_library_says_so_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "onnxruntime cannot be imported" in (OnnxRuntimeCuda().missing() or "")


@pytest.mark.parametrize("runtime", [OnnxRuntimeCuda(), TensorRt()])
def test_a_library_for_another_numpy_says_so_on_one_line(monkeypatch, tmp_path, runtime):
    for name in ("onnxruntime", "tensorrt"):
        text = "A module that was compiled using NumPy 1.x\\ncannot be run in NumPy 2"
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{text}')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    assert "using NumPy 1.x cannot be run in NumPy 2); " in (runtime.missing() or "")


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The provider is the CPU's: the rest of loading runs as it does on a GPU, which it gives."""
    card = FakeCuda()
    monkeypatch.setattr(onnxruntime_gpu, "Cuda", lambda: Cuda(card))
    for runtime in (OnnxRuntimeCuda, OnnxRuntimeTensorRt):
        monkeypatch.setattr(runtime, "provider", "CPUExecutionProvider")
        monkeypatch.setattr(runtime, "providers", lambda *_: ["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime_gpu, "CPU_PROVIDER", "none")
    monkeypatch.setattr(onnxruntime_gpu, "_preload_libraries", lambda: " (preloaded)")
    bound = partial(onnxruntime_gpu.BoundSession, memory="cpu")
    monkeypatch.setattr(onnxruntime_gpu, "BoundSession", bound)
    return card


def test_a_load_on_a_gpu_gives_a_bound_session(add, load, tmp_path, on_the_cpu):
    add("relu", onnx_models.relu())
    model = load("relu")
    told: list[str] = []
    runtime = OnnxRuntimeTensorRt()
    runtime.build(model, model.variants[0], GPU, tmp_path, told.append)

    session = runtime.load(model, model.variants[0], GPU, tmp_path)

    assert told == ["building engines"]
    assert isinstance(session, BoundSession)
    assert on_the_cpu.flags == FakeCuda.cudaDeviceScheduleBlockingSync
    x = np.array([[-1, 2, 3]], np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
    session.close()
    assert not runtime.is_built(tmp_path)
    (tmp_path / "TensorrtExecutionProvider_1.engine").touch()
    assert runtime.is_built(tmp_path)


def test_a_node_on_the_cpu_is_refused_by_name(add, load, tmp_path, on_the_cpu, monkeypatch):
    monkeypatch.setattr(onnxruntime_gpu, "CPU_PROVIDER", "CPUExecutionProvider")
    add("relu", onnx_models.relu())
    model = load("relu")

    with pytest.raises(ModelLoadError, match="onnxruntime has the CPU compute Relu, not "):
        OnnxRuntimeCuda().load(model, model.variants[0], GPU, tmp_path)


@pytest.mark.parametrize(
    ("made", "shape"), [(onnx_models.flattened(), (2, 2, 3)), (onnx_models.turned(), (2, 6))]
)
def test_arithmetic_on_shapes_may_be_on_the_cpu(
    add, load, tmp_path, on_the_cpu, monkeypatch, made, shape
):
    """The nodes that the CUDA provider leaves there, of `x.reshape(len(x), -1)` in PyTorch."""
    monkeypatch.setattr(onnxruntime_gpu, "CPU_PROVIDER", "CPUExecutionProvider")
    add("shapes", made)
    model = load("shapes")

    session = OnnxRuntimeCuda().load(model, model.variants[0], GPU, tmp_path)

    x = np.arange(12, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x.reshape(2, 6))
    session.close()


def test_a_build_that_does_not_tell_which_nodes_are_where_accepts_none(
    add, load, tmp_path, on_the_cpu, monkeypatch
):
    (base,) = onnxruntime.InferenceSession.__bases__
    monkeypatch.delattr(base, "get_provider_graph_assignment_info", raising=False)
    add("relu", onnx_models.relu())
    model = load("relu")

    with pytest.raises(ModelLoadError, match=r"disabled fallback to the CPU EP.*preloaded"):
        OnnxRuntimeCuda().load(model, model.variants[0], GPU, tmp_path)


def test_a_session_that_did_not_get_its_provider_is_refused(add, load, tmp_path, on_the_cpu):
    add("relu", onnx_models.relu())
    model, runtime = load("relu"), OnnxRuntimeCuda()
    runtime.provider = "CUDAExecutionProvider"

    with pytest.raises(ModelLoadError, match=r"could not start CUDAExecutionProvider \(preloaded"):
        runtime.load(model, model.variants[0], GPU, tmp_path)


@pytest.fixture
def built_for_tensorrt(monkeypatch, tmp_path):
    """An ONNX Runtime with the provider, whose library needs another one of the given name."""

    def build(needed: bytes) -> None:
        names = ["TensorrtExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
        monkeypatch.setattr(onnxruntime, "__file__", str(tmp_path / "__init__.py"))
        (tmp_path / "capi").mkdir()
        library = tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so"
        library.write_bytes(b"\x7fELF\0libcublas.so.13\0" + needed + b"\0libc.so.6\0")

    return build


def test_the_tensorrt_that_the_provider_needs_is_named(monkeypatch, built_for_tensorrt):
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="100.4.0"))
    built_for_tensorrt(b"libnvinfer.so.99")

    missing = OnnxRuntimeTensorRt().missing() or ""

    assert "built for TensorRT 99 (libnvinfer.so.99: cannot open shared object file" in missing
    assert missing.endswith("pip install 'tensorrt>=99,<100'")
    assert OnnxRuntimeTensorRt().version().endswith("of the system")


def test_a_provider_that_names_no_tensorrt_is_left_to_the_library(built_for_tensorrt):
    built_for_tensorrt(b"")

    assert OnnxRuntimeTensorRt().missing() is None


def test_a_tensorrt_that_is_loaded_is_found_by_its_name(monkeypatch, built_for_tensorrt):
    loaded: list[str] = []

    def load(name):
        loaded.append(name)
        return SimpleNamespace(getInferLibVersion=lambda: 10_03_00)

    monkeypatch.setitem(sys.modules, "tensorrt", None)  # the system's, without its Python module
    monkeypatch.setattr("ctypes.CDLL", load)
    built_for_tensorrt(b"libnvinfer.so.10")

    assert OnnxRuntimeTensorRt().missing() is None
    assert loaded == ["libnvinfer.so.10"]
    assert OnnxRuntimeTensorRt().version().endswith("with TensorRT 10.3.0")


def test_a_build_without_the_provider_says_which_to_install(monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert OnnxRuntimeCuda().missing() is None
    assert "no TensorrtExecutionProvider" in (OnnxRuntimeTensorRt().missing() or "")
