"""What of the TensorRT runtime can run without a GPU: plans, builds, caches, buffers, errors.

CUDA and TensorRT are stood in for by `fake_cuda` and `fake_tensorrt`; that the names used exist
in the real bindings is checked, that the real ones do what the fakes do is not.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from dataclasses import replace
from enum import EnumMeta
from pathlib import Path

import numpy as np
import pytest

from tests.workers import fake_tensorrt, onnx_models
from tests.workers.conftest import QUICK
from tests.workers.fake_cuda import Error, FakeCuda
from workers.crash_guard import ATTEMPTS
from workers.device_host import DeviceHost
from workers.runtimes import RUNTIMES, tensorrt_build
from workers.runtimes import tensorrt as trt_runtime
from workers.runtimes.base import DeviceSpec, ModelLoadError, RunError
from workers.runtimes.cuda import Cuda, CudaError
from workers.runtimes.onnxruntime import OnnxRuntime
from workers.runtimes.shape_plan import (
    InputRange,
    batch_spans,
    one_profile,
    plan_profiles,
    profile_for,
    spell_profile,
)
from workers.runtimes.tensorrt import TensorRt
from workers.runtimes.tensorrt_build import BuildError, BuildRequest, build_apart, build_engine
from workers.runtimes.tensorrt_log import register_plugins
from workers.runtimes.tensorrt_session import open_engine

GPU = DeviceSpec("gpu:0", "gpu", runtimes=("tensorrt",))
RECORDED = json.loads((Path(__file__).parent / "tensorrt_names.json").read_text())
NAMES = RECORDED["names"]


@pytest.fixture
def gpu(monkeypatch):
    """A fake GPU, which TensorRT and CUDA are found on."""
    card = FakeCuda()
    monkeypatch.setattr(fake_tensorrt, "CUDA", card)
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setattr(trt_runtime, "Cuda", lambda: Cuda(card))
    monkeypatch.setattr(trt_runtime, "gpu_fault", lambda: None)
    monkeypatch.setattr(trt_runtime, "gpu_loss", lambda: Cuda(card).lost())
    monkeypatch.setattr(trt_runtime, "gpu_identity", lambda: Cuda(card).identity())
    return card


@pytest.fixture
def here(monkeypatch):
    """Builds happen in this process."""

    def build(request, tell):
        try:
            engine = build_engine(fake_tensorrt, request, tell)
        except BuildError as error:
            raise ModelLoadError(f"TensorRT does not build it: {error}") from error
        Path(request.engine).write_bytes(engine)

    monkeypatch.setattr(trt_runtime, "build_apart", build)


@pytest.fixture
def open_session(gpu, here, tmp_path):
    sessions = []

    def open_one(model):
        runtime = TensorRt()
        assert not runtime.is_built(tmp_path)
        runtime.build(model, model.variants[0], GPU, tmp_path, lambda text: None)
        assert runtime.is_built(tmp_path)
        session = runtime.load(model, model.variants[0], GPU, tmp_path)
        sessions.append(session)
        return session

    yield open_one
    for session in sessions:
        session.close()
    assert gpu.device == {}
    assert gpu.pinned == {}
    assert gpu.streams == {}
    assert gpu.recorded == {}
    assert gpu.live_graphs == set()


def public(of) -> set[str]:
    own = vars(of) if isinstance(of, EnumMeta) else {**vars(of), **_attributes_set_in_init(of)}
    return {name for name in own if not name.startswith("_")} - {"built", "device_memory_size_v2"}


def _attributes_set_in_init(of) -> dict[str, None]:
    return {"progress_monitor": None} if of.__name__ == "IBuilderConfig" else {}


def test_every_name_used_is_in_the_bindings_of_10_3_10_16_and_11_4():
    classes = {
        name: value
        for name, value in vars(fake_tensorrt).items()
        if inspect.isclass(value) and value.__module__ == fake_tensorrt.__name__
    }
    assert len(classes) > 15
    for name, value in classes.items():
        assert name in NAMES["module"]
        members = {m for m in public(value) if not isinstance(getattr(value, m, None), EnumMeta)}
        if name in NAMES:
            assert members <= set(NAMES[name]), name
    severities = {s.name for s in fake_tensorrt.ILogger.Severity}
    assert severities <= set(NAMES["ILogger.Severity"])
    assert {"nptype", "init_libnvinfer_plugins"} <= set(NAMES["module"])
    assert "device_memory_size_v2" in NAMES["ICudaEngine"]


@pytest.mark.parametrize("call", RECORDED["signatures"])
def test_every_call_has_the_parameters_of_the_real_ones(call):
    owner, _, name = call.rpartition(".")
    found = getattr(getattr(fake_tensorrt, owner) if owner else fake_tensorrt, name)

    parameters = list(inspect.signature(found).parameters)

    assert parameters[1 if owner else 0 :] == RECORDED["signatures"][call]


@pytest.mark.parametrize(
    ("max_batch", "spans"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (2, 2)]),
        (4, [(1, 1), (2, 2), (3, 4)]),
        (32, [(1, 1), (2, 4), (5, 32)]),
        (33, [(1, 1), (2, 8), (9, 33)]),
    ],
)
def test_batch_spans_meet_and_cover_the_ladder(max_batch, spans):
    assert batch_spans(max_batch) == spans


def test_profiles_follow_batches_and_shape_ranges(add, load):
    yaml = (
        "max_batch: 8\nprofile_shapes: {ids: [16]}\n"
        "shape_ranges: {ids: {least: [1], most: [128]}}\nvariants: {a: {file: model.onnx}}"
    )
    add("ids", onnx_models.sequence(), yaml)
    model = load("ids")

    profiles = plan_profiles(model, model.variants[0], model.max_batch)

    assert profiles == [
        {"ids": InputRange((1, 1), (1, 16), (1, 128))},
        {"ids": InputRange((2, 1), (2, 16), (2, 128))},
        {"ids": InputRange((3, 1), (8, 16), (8, 128))},
    ]
    assert profile_for(profiles, {"ids": (5, 90)}) == 2
    assert profile_for(profiles, {"ids": (9, 90)}) is None
    assert profile_for(profiles, {"ids": (2, 129)}) is None
    assert one_profile(profiles) == {"ids": InputRange((1, 1), (8, 16), (8, 128))}
    assert spell_profile(profiles[1], "best") == "ids:2x16"


def test_a_free_dimension_without_bounds_says_what_to_write(add, load):
    add("ids", onnx_models.sequence())
    model = load("ids")

    with pytest.raises(ModelLoadError, match=r"shape_ranges: \{ids: \{least: "):
        plan_profiles(model, model.variants[0], 8)


def test_a_fixed_batch_has_one_profile(add, load):
    add("relu", onnx_models.relu(batch=1))
    model = load("relu")

    assert plan_profiles(model, model.variants[0], 32) == [
        {"x": InputRange((1, 3), (1, 3), (1, 3))}
    ]


def request_for(folder: Path, model: Path, **changes) -> BuildRequest:
    made = BuildRequest(
        model=str(model),
        engine=str(folder / "model.engine"),
        timing_cache=str(folder / "timings"),
        profiles=({"x": InputRange((1, 3), (1, 3), (1, 3))},),
        workspace_bytes=1 << 28,
        tf32=False,
    )
    return replace(made, **changes)


def test_a_request_survives_the_pipe(tmp_path):
    request = request_for(tmp_path, tmp_path / "model.onnx")

    assert BuildRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize("tf32", [False, True])
def test_a_build_sets_what_was_asked_for_and_tells_its_progress(add, tmp_path, tf32):
    file = add("relu", onnx_models.relu())
    said: list[str] = []

    build_engine(fake_tensorrt, request_for(tmp_path, file, tf32=tf32), said.append)

    config = fake_tensorrt.Builder.built
    assert (fake_tensorrt.BuilderFlag.TF32 in config._flags) == tf32
    assert config._pools == {fake_tensorrt.MemoryPoolType.WORKSPACE: 1 << 28}
    assert len(config._profiles) == 1
    assert said == ["parsing", "building, Tactic selection", "building, Tactic selection 1/2"]
    assert (tmp_path / "timings").read_bytes() == b"timings of Fake GPU"


@pytest.mark.parametrize("kept", [b"timings of Fake GPU", b"timings of another GPU", b"\0"])
def test_timings_of_another_gpu_are_not_used(add, tmp_path, kept):
    file = add("relu", onnx_models.relu())
    (tmp_path / "timings").write_bytes(kept)

    build_engine(fake_tensorrt, request_for(tmp_path, file), lambda text: None)

    attached = fake_tensorrt.Builder.built._timings
    assert attached._content == (kept if kept == b"timings of Fake GPU" else b"")


def test_an_operator_without_a_layer_is_named(add, tmp_path):
    file = add("found", onnx_models.found_objects())

    with pytest.raises(BuildError, match="NonZero: is not supported"):
        build_engine(fake_tensorrt, request_for(tmp_path, file), lambda text: None)


def test_a_build_that_fails_has_the_librarys_words(add, tmp_path):
    file = add("relu", onnx_models.relu())

    with pytest.raises(BuildError, match="could not find any implementation"):
        build_engine(
            fake_tensorrt, request_for(tmp_path, file, workspace_bytes=1), lambda text: None
        )


def test_an_engine_without_room_for_its_scratch_space_leaves_nothing(
    gpu, open_session, add, load, tmp_path, monkeypatch
):
    add("relu", onnx_models.relu())
    model = load("relu")
    open_session(model).close()
    monkeypatch.setattr(trt_runtime, "_require_room", lambda *_: None)
    gpu.memory_bytes = 0
    with pytest.raises(CudaError, match="out of memory"):
        TensorRt().load(model, model.variants[0], GPU, tmp_path)
    assert gpu.streams == {}


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """A package `tensorrt` for other processes."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "tensorrt.py").write_text("from tests.workers.fake_tensorrt import *\n")
    checkout = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{checkout}")
    return folder


def test_a_build_in_a_process_of_its_own(add, tmp_path, fake_package):
    file = add("relu", onnx_models.relu())
    said: list[str] = []

    build_apart(request_for(tmp_path, file), said.append)

    assert "building, Tactic selection 1/2" in said
    assert open_engine(fake_tensorrt, (tmp_path / "model.engine").read_bytes())


def test_what_the_library_prints_is_not_taken_for_an_answer(add, tmp_path, fake_package):
    file = add("relu", onnx_models.relu())
    module = fake_package / "tensorrt.py"
    module.write_text(f"print('[TRT] loading', flush=True)\n{module.read_text()}")

    build_apart(request_for(tmp_path, file), lambda text: None)

    assert (tmp_path / "model.engine").exists()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ImportError('libnvinfer.so.10: cannot open')", "does not build it: libnvinfer"),
        ("import os; os.abort()", "ended with status -6"),
    ],
)
def test_a_build_that_dies_harms_nobody(add, tmp_path, fake_package, module, said):
    file = add("relu", onnx_models.relu())
    (fake_package / "tensorrt.py").write_text(module)

    with pytest.raises(ModelLoadError, match=said):
        build_apart(request_for(tmp_path, file), lambda text: None)


def test_each_batch_size_is_captured_once_and_launched_from_then_on(add, load, gpu, open_session):
    add("two", onnx_models.two_by_two(), "max_batch: 4\nvariants: {a: {file: model.onnx}}")
    session = open_session(load("two"))
    rng = np.random.default_rng(0)

    for batch in (1, 4, 2, 1, 4, 2, 1):
        a = rng.random((batch, 3), np.float32)
        b = rng.integers(0, 9, (batch, 3), np.int32)
        outputs = session.run({"a": a, "b": b})
        assert list(outputs) == ["sum", "total"]
        np.testing.assert_allclose(outputs["sum"], a + b)
        np.testing.assert_allclose(outputs["total"], a.sum(axis=1), rtol=1e-6)

    assert len(gpu.graphs) == 3
    assert gpu.launches == 7


def test_a_thread_that_waits_for_the_gpu_sleeps(add, load, gpu, open_session):
    add("relu", onnx_models.relu())

    open_session(load("relu"))

    assert gpu.flags == FakeCuda.cudaDeviceScheduleBlockingSync


def test_what_cannot_be_captured_is_enqueued(add, load, gpu, open_session, monkeypatch):
    add("relu", onnx_models.relu())
    monkeypatch.setattr(
        gpu,
        "cudaStreamBeginCapture",
        lambda stream, mode: (Error.cudaErrorStreamCaptureUnsupported,),
    )
    monkeypatch.setattr(gpu, "cudaStreamEndCapture", lambda stream: pytest.fail("never began"))
    session = open_session(load("relu"))

    for value in (-1, 2):
        x = np.full((2, 3), value, np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
    assert gpu.launches == 0


@pytest.mark.parametrize(
    ("call", "answer", "said"),
    [
        ("create_execution_context", None, "no room for another execution context"),
        ("set_optimization_profile_async", False, "does not take its profile 1"),
        ("set_input_shape", False, r"does not take 'x' of \[2, 3\]"),
        ("infer_shapes", ["y"], "cannot tell the shapes of y"),
        ("get_tensor_shape", (-1, 3), "output 'y' has a shape that depends on the data"),
        ("set_tensor_address", False, "does not take an address for 'x'"),
        ("execute_async_v3", False, "could not enqueue the run"),
    ],
)
def test_whatever_tensorrt_refuses_is_an_error_and_the_session_lives_on(
    add, load, gpu, open_session, monkeypatch, call, answer, said
):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))
    owners = (fake_tensorrt.ICudaEngine, fake_tensorrt.IExecutionContext)
    owner = next(each for each in owners if hasattr(each, call))
    x = np.full((2, 3), -1, np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, lambda *_: answer)
        with pytest.raises(RunError, match=said):
            session.run({"x": x})

    np.testing.assert_array_equal(session.run({"x": x})["y"], np.zeros((2, 3)))


def test_an_engine_that_refuses_to_be_captured_leaves_no_graph_and_is_enqueued(
    add, load, gpu, open_session, monkeypatch
):
    add("relu", onnx_models.relu())
    enqueue = fake_tensorrt.IExecutionContext.execute_async_v3

    def only_outside(self, stream):
        return stream not in gpu.capturing and enqueue(self, stream)

    monkeypatch.setattr(fake_tensorrt.IExecutionContext, "execute_async_v3", only_outside)
    x = np.full((2, 3), -1, np.float32)
    np.testing.assert_array_equal(open_session(load("relu")).run({"x": x})["y"], np.zeros((2, 3)))
    assert (gpu.capturing, gpu.recorded, gpu.graphs, gpu.launches) == ({}, {}, [], 0)


def test_a_refusal_has_the_reason_that_the_logger_got_and_errors_do_not_pile_up(
    add, load, gpu, open_session, monkeypatch
):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))
    x = np.ones((1, 3), np.float32)
    logger = session._engine.logger

    def refuses(self, stream):
        for number in range(1000):
            logger.log(fake_tensorrt.ILogger.Severity.ERROR, f"error {number}")
        return False

    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.IExecutionContext, "execute_async_v3", refuses)
        with pytest.raises(RunError, match="could not enqueue the run: error 999"):
            session.run({"x": x})
    assert session._engine.said == []
    logger.log(fake_tensorrt.ILogger.Severity.WARNING, "no error")
    for _ in range(1000):
        logger.log(fake_tensorrt.ILogger.Severity.ERROR, "again")
    assert session._engine.said == ["again"] * 16


def test_an_error_of_cudas_while_a_batch_runs_has_its_words(
    add, load, gpu, open_session, monkeypatch
):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))
    x = np.ones((1, 3), np.float32)
    session.run({"x": x})

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "cudaStreamSynchronize", lambda _: (Error.cudaErrorLaunchFailure,))
        with pytest.raises(RunError, match=r"tensorrt: .*cudaErrorLaunchFailure"):
            session.run({"x": x})

    np.testing.assert_array_equal(session.run({"x": x})["y"], x)


def test_a_closed_session_runs_nothing(add, load, open_session):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))
    session.close()

    with pytest.raises(RunError, match="the session is closed"):
        session.run({"x": np.ones((1, 3), np.float32)})


@pytest.mark.parametrize(
    ("call", "answer", "said"),
    [
        ("num_io_tensors", 0, "tensorrt finds no tensor x"),
        ("get_tensor_location", fake_tensorrt.TensorLocation.HOST, "wants it in main memory"),
        ("get_tensor_dtype", 7, "TensorRT has 'x' as int64, the file float32"),
    ],
)
def test_an_engine_that_is_not_the_models_is_a_load_error(
    add, load, gpu, here, tmp_path, monkeypatch, call, answer, said
):
    add("relu", onnx_models.relu())
    model, runtime = load("relu"), TensorRt()
    runtime.build(model, model.variants[0], GPU, tmp_path, lambda text: None)
    found = property(lambda _: answer) if call == "num_io_tensors" else lambda *_: answer
    monkeypatch.setattr(fake_tensorrt.ICudaEngine, call, found)

    with pytest.raises(ModelLoadError, match=said):
        runtime.load(model, model.variants[0], GPU, tmp_path)


def test_without_an_engine_there_is_nothing_to_load(add, load, gpu, tmp_path):
    add("relu", onnx_models.relu())
    model = load("relu")

    with pytest.raises(ModelLoadError, match="there is no engine in"):
        TensorRt().load(model, model.variants[0], GPU, tmp_path)


def test_a_format_that_numpy_lacks_is_a_load_error(add, load, gpu, here, tmp_path, monkeypatch):
    def fails(_):
        raise TypeError("Could not resolve TensorRT datatype fp8")

    add("relu", onnx_models.relu())
    model, runtime = load("relu"), TensorRt()
    runtime.build(model, model.variants[0], GPU, tmp_path, lambda text: None)
    monkeypatch.setattr(fake_tensorrt, "nptype", fails)

    with pytest.raises(ModelLoadError, match="'x': Could not resolve"):
        runtime.load(model, model.variants[0], GPU, tmp_path)


@pytest.mark.parametrize("error", [TypeError("null"), RuntimeError("no driver")])
def test_bindings_that_can_not_start_say_so(add, gpu, tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(fake_tensorrt, "Runtime", fails)
    with pytest.raises(ModelLoadError, match=str(error)):
        open_engine(fake_tensorrt, b"engine")
    monkeypatch.setattr(fake_tensorrt, "Builder", fails)
    file = add("relu", onnx_models.relu())
    with pytest.raises(BuildError, match=f"TensorRT could not start: {error}"):
        build_engine(fake_tensorrt, request_for(tmp_path, file), lambda text: None)


def test_shapes_that_a_network_does_not_take_are_a_build_error(add, gpu, tmp_path, monkeypatch):
    request = request_for(tmp_path, add("relu", onnx_models.relu()))
    with monkeypatch.context() as patch:
        patch.setattr(fake_tensorrt.IBuilderConfig, "add_optimization_profile", lambda *_: -1)
        with pytest.raises(BuildError, match="the shapes do not fit the network"):
            build_engine(fake_tensorrt, request, lambda text: None)

    def fails(*_):
        raise ValueError("bad shape")

    monkeypatch.setattr(fake_tensorrt.IOptimizationProfile, "set_shape", fails)
    with pytest.raises(BuildError, match=r"'x' of .*bad shape"):
        build_engine(fake_tensorrt, request, lambda text: None)


def test_libraries_that_can_not_be_loaded_are_named(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "tensorrt":
                raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert "libnvinfer.so.10" in (TensorRt().missing() or "")


def test_outputs_outlive_the_next_run(add, load, open_session):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))

    first = session.run({"x": np.full((1, 3), 1, np.float32)})["y"]
    session.run({"x": np.full((1, 3), 2, np.float32)})

    np.testing.assert_array_equal(first, [[1, 1, 1]])


def test_many_shapes_do_not_take_ever_more_memory(add, load, gpu, open_session):
    yaml = (
        "max_batch: 2\nshape_ranges: {ids: {least: [1], most: [64]}}\n"
        "variants: {a: {file: model.onnx}}"
    )
    add("ids", onnx_models.sequence(), yaml)
    session = open_session(load("ids"))

    for length in (*range(1, 41), 1):
        ids = np.arange(2 * length).reshape(2, length)
        np.testing.assert_array_equal(session.run({"ids": ids})["sum"], ids.sum(axis=1))

    assert len(gpu.live_graphs) == 16
    assert len(gpu.device) == 1 + 16 * 2


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((1, 3)), r"'x' as float64\[1, 3\]: the model takes float32"),
        (np.zeros((1, 4), np.float32), r"'x' of \[1, 4\]: no profile of the engine covers"),
        (np.zeros((33, 3), np.float32), "no profile of the engine covers"),
        (np.zeros((0, 3), np.float32), "no profile of the engine covers"),
    ],
)
def test_a_wrong_tensor_is_an_error_and_the_session_lives_on(add, load, open_session, x, said):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))

    with pytest.raises(RunError, match=said):
        session.run({"x": x})

    np.testing.assert_array_equal(session.run({"x": np.ones((1, 3), np.float32)})["y"], [[1] * 3])


@pytest.mark.parametrize("dtype", ["float64", "int16", "uint64"])
def test_a_dtype_that_tensorrt_lacks_is_a_load_error(add, load, gpu, here, tmp_path, dtype):
    add("passes", onnx_models.passes_on(dtype))
    model = load("passes")
    TensorRt().build(model, model.variants[0], GPU, tmp_path, lambda text: None)

    with pytest.raises(ModelLoadError, match="'x'"):
        TensorRt().load(model, model.variants[0], GPU, tmp_path)


@pytest.mark.parametrize("full", ["memory", "contexts"])
def test_a_full_gpu_gives_a_new_shape_the_memory_of_those_used_least_recently(
    add, load, gpu, open_session, monkeypatch, full
):
    add("relu", onnx_models.relu(width=1000))
    session = open_session(load("relu"))

    def works_for(batch):
        x = np.full((batch, 1000), -1, np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.zeros((batch, 1000)))

    for batch in (1, 2, 3, 1):
        works_for(batch)
    if full == "memory":
        gpu.memory_bytes = gpu.used_bytes() + 20_000
    else:
        make = fake_tensorrt.ICudaEngine.create_execution_context
        monkeypatch.setattr(
            fake_tensorrt.ICudaEngine,
            "create_execution_context",
            lambda engine, strategy: None if len(session._lanes) > 1 else make(engine, strategy),
        )
    works_for(4)

    kept = [batch for ((batch, _),) in session._lanes]
    assert kept == ([3, 1, 4] if full == "memory" else [1, 4])
    assert len(gpu.live_graphs) == len(kept)
    works_for(2)


def test_a_gpu_that_is_full_of_other_things_is_an_error_with_cudas_words(
    add, load, gpu, open_session
):
    add("relu", onnx_models.relu(width=1000))
    session = open_session(load("relu"))
    before = dict(gpu.device)
    gpu.memory_bytes = gpu.used_bytes() + 5000

    with pytest.raises(CudaError, match="cudaMalloc: cudaErrorMemoryAllocation, out of memory"):
        session.run({"x": np.ones((2, 1000), np.float32)})

    assert gpu.device == before


@pytest.mark.parametrize("limited_by", ["card", "option"])
def test_an_engine_too_large_for_the_gpu_is_refused_with_its_numbers(
    add, load, gpu, here, tmp_path, limited_by
):
    add("dense", onnx_models.dense())
    model = load("dense")
    TensorRt().build(model, model.variants[0], GPU, tmp_path, lambda text: None)
    device = GPU
    if limited_by == "card":
        gpu.memory_bytes = 100_000
    else:
        (tmp_path / "model.engine").write_bytes(bytes(1_200_000))
        device = replace(GPU, options={"gpu_memory_mb": 1})

    with pytest.raises(ModelLoadError, match=r"too large for the GPU.s memory: the engine takes"):
        TensorRt().load(model, model.variants[0], device, tmp_path)


def test_a_jetsons_gpu_gets_the_memory_that_holds_cached_files(
    add, load, gpu, here, tmp_path, monkeypatch
):
    add("dense", onnx_models.dense())
    model = load("dense")
    TensorRt().build(model, model.variants[0], GPU, tmp_path, lambda text: None)
    gpu.memory_bytes, gpu.is_integrated = 100_000, True
    monkeypatch.setattr(trt_runtime, "available_bytes", lambda root: 10**9)

    TensorRt().load(model, model.variants[0], GPU, tmp_path).close()

    monkeypatch.setattr(trt_runtime, "available_bytes", lambda root: 10_000)
    with pytest.raises(ModelLoadError, match=r"too large for the GPU.s memory"):
        TensorRt().load(model, model.variants[0], GPU, tmp_path)


def test_plugins_are_registered_once_before_an_engine_is_read(add, load, gpu, here, tmp_path):
    add("relu", onnx_models.relu())
    model = load("relu")
    TensorRt().build(model, model.variants[0], GPU, tmp_path, lambda text: None)
    register_plugins.cache_clear()  # as in the process that reads what another one has built
    fake_tensorrt.REGISTERED.clear()

    for _ in range(2):
        TensorRt().load(model, model.variants[0], GPU, tmp_path).close()

    assert len(fake_tensorrt.REGISTERED) == 1


def test_an_engine_that_is_damaged_is_a_load_error(gpu):
    with pytest.raises(ModelLoadError, match="rejects the engine: magicTag does not match"):
        open_engine(fake_tensorrt, b"not an engine")


def test_a_library_that_is_too_old_says_so(monkeypatch, gpu):
    monkeypatch.setattr(fake_tensorrt, "__version__", "8.6.1")

    assert TensorRt().missing() == "tensorrt is 8.6.1, and 10.3 or later is needed"


def test_what_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)

    assert "--system-site-packages" in (TensorRt().missing() or "")


def test_a_host_builds_while_it_serves_and_keeps_the_engine(add, root, gpu, here, tmp_path):
    add("relu", onnx_models.relu())
    state = tmp_path / "state"
    texts: list[str] = []

    def start() -> DeviceHost:
        return DeviceHost(GPU, root, state, 4, QUICK)

    host = start()
    (offer,) = host.prepare(lambda done, total, text: texts.append(text))

    assert offer.runtime == "tensorrt"
    assert any("tensorrt, building, Tactic selection" in text for text in texts)
    (result,) = host.run("relu", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    assert result["y"].tolist() == [0, 0, 2]
    host.close()

    texts.clear()
    host = start()
    assert [offer.runtime for offer in host.prepare(lambda *step: texts.append(step[2]))]
    assert texts[0] == "relu/1: tensorrt, as measured before"
    host.close()

    (engine,) = state.rglob("model.engine")
    engine.write_bytes(engine.read_bytes() + b" ")
    host = start()
    assert [offer.runtime for offer in host.prepare()] == ["tensorrt"]
    assert "model.engine is not the file that this box wrote" in host.problems[0].reason
    host.close()


class NextBest(OnnxRuntime):
    """A runtime for the GPU that serves at once, and slowly."""

    name = "onnxruntime-cuda"
    kinds = frozenset({"gpu"})

    def load(self, model, variant, device, cache_dir):
        session = super().load(model, variant, device, cache_dir)
        run = session.run

        def slowly(inputs):
            time.sleep(0.2)  # a busy machine may hold the other one up
            return run(inputs)

        session.run = slowly  # type: ignore[method-assign]
        return session


def test_the_next_best_runtime_serves_while_an_engine_is_built(
    add, root, gpu, here, tmp_path, monkeypatch
):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(RUNTIMES, "onnxruntime-cuda", NextBest)
    add("relu", onnx_models.relu())
    add("dense", onnx_models.dense())
    device = replace(GPU, runtimes=("onnxruntime-cuda", "tensorrt"))
    host = DeviceHost(device, root, tmp_path / "state", 2, QUICK)
    x = {"x": np.array([-1, 0, 2], np.float32)}
    answers: list[object] = []
    build = vars(trt_runtime)["build_apart"]

    def build_and_ask(request, tell):
        answers.extend(host.run("relu", "1", [x]))
        build(request, tell)

    monkeypatch.setattr(trt_runtime, "build_apart", build_and_ask)
    offers = [(offer.model, offer.runtime) for offer in host.prepare()]

    assert offers == [
        ("dense", "onnxruntime-cuda"),
        ("relu", "onnxruntime-cuda"),
        ("dense", "tensorrt"),
        ("relu", "tensorrt"),
    ]
    assert len(answers) == 2
    for answer in [*answers, *host.run("relu", "1", [x])]:
        assert isinstance(answer, dict)
        assert answer["y"].tolist() == [0, 0, 2]
    assert host.problems == []
    host.close()


def test_a_build_that_fails_leaves_the_next_best_serving(
    add, root, gpu, here, tmp_path, monkeypatch
):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(RUNTIMES, "onnxruntime-cuda", NextBest)
    add("found", onnx_models.found_objects())
    device = replace(GPU, runtimes=("onnxruntime-cuda", "tensorrt"))
    host = DeviceHost(device, root, tmp_path / "state", 2, QUICK)

    assert [offer.runtime for offer in host.prepare()] == ["onnxruntime-cuda"]
    (problem,) = host.problems
    assert problem.runtime == "tensorrt"
    assert "failed to build: " in problem.reason
    host.close()


def test_an_answer_that_is_off_from_the_cpus_is_refused_with_its_numbers(
    add, root, gpu, here, tmp_path, monkeypatch
):
    add("relu", onnx_models.relu())
    right = fake_tensorrt.IExecutionContext._compute
    monkeypatch.setattr(
        fake_tensorrt.IExecutionContext,
        "_compute",
        lambda self, given: {n: a * np.float32(1.5) for n, a in right(self, given).items()},
    )
    host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)

    assert list(host.prepare()) == []
    (problem,) = host.problems
    assert problem.runtime == "tensorrt"
    assert problem.reason.startswith("rejected: 'y' is off by 0.")
    host.close()


class Ended(BaseException):
    """The end of the process."""


class TestAfterAnIllegalAccess:
    """ "Any further CUDA work will return the same error", says CUDA of such an error."""

    @pytest.fixture
    def deaths(self, tmp_path, monkeypatch):
        """The guard's records at each end of the process, which is an exception here."""
        found: list[list[str]] = []

        def end(status):
            records = (tmp_path / "state" / ATTEMPTS).iterdir()
            found.append(["serving" if "-serving" in path.name else "trying" for path in records])
            raise Ended(status)

        monkeypatch.setattr("workers.lost_device.os._exit", end)
        return found

    @pytest.fixture
    def breaks(self, gpu, monkeypatch, deaths):
        """Makes the GPU unusable for the process."""

        def fails(*_):
            return (Error.cudaErrorIllegalAddress,)

        def breaks(patch=monkeypatch):
            for call in ("cudaStreamSynchronize", "cudaMalloc", "cudaMemGetInfo"):
                patch.setattr(gpu, call, fails)

        return breaks

    def test_a_worker_ends_and_says_why_rather_than_fail_all_requests(
        self, add, root, gpu, here, tmp_path, breaks
    ):
        add("relu", onnx_models.relu())
        host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)
        assert len(list(host.prepare())) == 1
        told: list[str] = []
        host.tell_end = told.append
        x = {"x": np.ones(3, np.float32)}
        breaks()

        with pytest.raises(Ended):
            host.run("relu", "1", [x, x])

        (reason,) = told
        assert reason.startswith("tensorrt can no longer use the device in this process: cudaMemG")
        assert "cudaErrorIllegalAddress" in reason

    def test_it_ends_within_the_attempt_that_broke_it(
        self, add, root, gpu, here, tmp_path, breaks, deaths, capsys
    ):
        add("relu", onnx_models.relu())
        host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)
        breaks()

        with pytest.raises(Ended):
            list(host.prepare())

        assert "can no longer use the device" in capsys.readouterr().err
        assert host.problems == []
        assert deaths == [["trying"]]

    @pytest.mark.parametrize("step", ["build", "load"])
    def test_it_ends_also_if_the_library_says_no_more_than_that_it_failed(
        self, add, root, gpu, here, tmp_path, breaks, deaths, monkeypatch, step
    ):
        def fails(*_):
            breaks()
            raise ModelLoadError("it failed")

        monkeypatch.setattr(TensorRt, step, fails)
        add("relu", onnx_models.relu())
        host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)

        with pytest.raises(Ended):
            list(host.prepare())

        assert deaths == [["trying"]]

    def test_what_breaks_it_again_and_again_while_it_serves_is_left_out(
        self, add, root, gpu, here, tmp_path, breaks, deaths, monkeypatch
    ):
        add("relu", onnx_models.relu())
        x = {"x": np.ones(3, np.float32)}
        for _ in range(3):
            host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)
            assert len(list(host.prepare())) == 1
            with monkeypatch.context() as patch:
                breaks(patch)
                with pytest.raises(Ended):
                    host.run("relu", "1", [x])

        host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)

        assert list(host.prepare()) == []
        assert "died 3 times while serving it" in host.problems[-1].reason
        assert deaths == [["serving"]] * 3

    def test_a_failure_of_one_run_ends_nothing(self, add, root, gpu, here, tmp_path, monkeypatch):
        add("relu", onnx_models.relu())
        host = DeviceHost(GPU, root, tmp_path / "state", 4, QUICK)
        list(host.prepare())
        x = {"x": np.ones(3, np.float32)}

        with monkeypatch.context() as patch:
            patch.setattr(gpu, "cudaStreamSynchronize", lambda _: (Error.cudaErrorLaunchFailure,))
            (failed,) = host.run("relu", "1", [x])
        (result,) = host.run("relu", "1", [x])

        assert isinstance(failed, RunError)
        assert isinstance(result, dict)
        host.close()


class TestTheProcessThatBuilds:
    @pytest.fixture
    def built(self, add, tmp_path, monkeypatch):
        """Carries out a request, as the process does; its exit status and what it says."""
        monkeypatch.setattr("os.nice", lambda by: by)  # this process stays what it was
        file = add("relu", onnx_models.relu())

        def run(**changes) -> tuple[int, list[dict[str, str]]]:
            said: list[str] = []
            request = request_for(tmp_path, file, **changes).to_json()
            status = tensorrt_build.main(lambda: request, said.append)
            return status, [json.loads(line) for line in said]

        return run

    def test_it_tells_its_progress_and_where_the_engine_is(self, gpu, built, tmp_path):
        status, said = built()
        assert status == 0
        assert said[0] == {"progress": "parsing"}
        assert said[-1] == {"done": str(tmp_path / "model.engine")}
        assert (tmp_path / "model.engine").read_bytes()

    def test_it_says_why_there_is_no_engine(self, gpu, built, monkeypatch):
        status, said = built(engine="/nowhere/model.engine")
        assert (status, "No such file" in said[-1]["error"]) == (1, True)
        monkeypatch.setitem(sys.modules, "tensorrt", None)
        status, (only,) = built()
        assert (status, "tensorrt" in only["error"]) == (1, True)
