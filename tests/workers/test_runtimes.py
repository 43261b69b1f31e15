"""What every runtime has to do, whichever library is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.signature import DTYPES
from tests.workers import onnx_models
from workers.model import Model
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec, ModelLoadError, RunError, Session
from workers.sampling import sample_items
from workers.stacking import stack_items

CPU = DeviceSpec("cpu:0", "cpu", cores=(0,))
EMULATED = replace(CPU, runtimes=("emulated",), options={"base_ms": 0.0})
COMPUTING = ["openvino", "onnxruntime"]

Open = Callable[[Model], Session]


@pytest.fixture(params=list(RUNTIMES))
def runtime(request):
    found = RUNTIMES[request.param]()
    reason = found.missing()
    if reason is not None:
        pytest.skip(reason)
    return found


@pytest.fixture
def open_session(runtime, tmp_path):
    sessions = []

    def open_one(model: Model) -> Session:
        device = EMULATED if runtime.name == "emulated" else CPU
        session: Session = runtime.load(model, model.variants[0], device, tmp_path)
        sessions.append(session)
        return session

    yield open_one
    for session in sessions:
        session.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_every_dtype_passes_through_unchanged(add, load, runtime, open_session, dtype):
    add("passes", onnx_models.passes_on(dtype))
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(dtype)
    if dtype == "float64" and runtime.name == "openvino":
        with pytest.raises(ModelLoadError, match="computes float64 in float32"):
            open_session(load("passes"))
        return

    y = open_session(load("passes")).run({"x": x})["y"]

    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, (~x if dtype == "bool" else x).reshape(2, 2, 2))


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_a_wide_integer_is_exact_or_refused(add, load, runtime, open_session, value):
    add("passes", onnx_models.passes_on("int64"))
    session = open_session(load("passes"))
    x = np.array([[value, 0, 1, 2]])

    if runtime.name == "openvino":
        with pytest.raises(RunError, match=r"outside -2147483648\.\.2147483647"):
            session.run({"x": x})
    else:
        np.testing.assert_array_equal(session.run({"x": x})["y"].ravel(), x.ravel())


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_an_integer_at_the_edge_of_int32_is_exact(add, load, open_session):
    add("passes", onnx_models.passes_on("int64"))
    x = np.array([[2**31 - 1, -(2**31), 0, 1]])

    y = open_session(load("passes")).run({"x": x})["y"]

    np.testing.assert_array_equal(y.ravel(), x.ravel())


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_several_inputs_and_outputs_keep_their_names(add, load, open_session):
    add("two", onnx_models.two_by_two())
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([[10, 20, 30], [40, 50, 60]], np.int32)

    outputs = open_session(load("two")).run({"b": b, "a": a})

    assert list(outputs) == ["sum", "total"]
    np.testing.assert_array_equal(outputs["sum"], a + b)
    np.testing.assert_array_equal(outputs["total"], [3, 12])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_dynamic_batch_takes_any_size(add, load, open_session, batch):
    add("two", onnx_models.two_by_two())
    session = open_session(load("two"))

    outputs = session.run(stack_items(sample_items(load("two"), batch)))

    assert session.max_batch == 32
    assert {name: array.shape for name, array in outputs.items()} == {
        "sum": (batch, 3),
        "total": (batch,),
    }


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_free_dimension_may_change_between_runs(add, load, open_session):
    add("ids", onnx_models.sequence())
    session = open_session(load("ids"))

    for length in (3, 7, 2):
        ids = np.arange(2 * length).reshape(2, length)
        np.testing.assert_array_equal(session.run({"ids": ids})["sum"], ids.sum(axis=1))


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_model_without_a_batch_dimension_takes_items_as_they_are(add, load, open_session):
    add("scalar", onnx_models.scalar())
    session = open_session(load("scalar"))

    y = session.run({"x": np.array(2.5, np.float32)})["y"]

    assert session.max_batch == 1
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.item()) == ((), 5.0)


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_fixed_batch_is_exact_at_every_size_the_session_claims(add, load, open_session):
    add("relu", onnx_models.relu(batch=1))
    session = open_session(load("relu"))
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)[: session.max_batch]

    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("made", [onnx_models.mixes_items(1), onnx_models.resists_reshaping()])
@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_fixed_batch_that_cannot_grow_stays_at_one(add, load, open_session, made):
    add("stuck", made)
    session = open_session(load("stuck"))

    outputs = session.run(stack_items(sample_items(load("stuck"), 1)))

    assert session.max_batch == 1
    assert len(outputs["y"]) == 1


def test_openvino_grows_a_fixed_batch(add, load, tmp_path):
    pytest.importorskip("openvino")
    add("relu", onnx_models.relu(batch=1), "max_batch: 5\nvariants: {a: {file: model.onnx}}")
    model = load("relu")

    session = RUNTIMES["openvino"]().load(model, model.variants[0], CPU, tmp_path)

    assert session.max_batch == 5


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_inputs_may_be_read_only_or_strided_and_are_left_alone(add, load, open_session):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))
    frozen = np.array([[-1, 2, -3]], np.float32)
    frozen.flags.writeable = False
    strided = np.array([[-1, 9, 2, 9, -3, 9]], np.float32)[:, ::2]

    for x in (frozen, strided):
        before = x.copy()
        np.testing.assert_array_equal(session.run({"x": x})["y"], [[0, 2, 0]])
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_outputs_outlive_the_next_run_and_the_session(add, load, open_session):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))

    first = session.run({"x": np.full((1, 3), 1, np.float32)})["y"]
    session.run({"x": np.full((1, 3), 2, np.float32)})
    session.close()

    np.testing.assert_array_equal(first, [[1, 1, 1]])
    assert first.flags.writeable


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"z": np.zeros((1, 3), np.float32)},
        {"x": np.zeros((1, 3), np.float32), "z": np.zeros(1)},
    ],
    ids=["none", "another", "too many"],
)
def test_wrong_names_are_an_error_and_the_session_lives_on(add, load, open_session, inputs):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))

    with pytest.raises(RunError, match="the model takes x, but was given"):
        session.run(inputs)

    assert session.run({"x": np.ones((1, 3), np.float32)})["y"].shape == (1, 3)


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
@pytest.mark.parametrize(
    "x",
    [np.zeros((1, 3)), np.zeros((1, 4), np.float32), np.zeros(3, np.float32)],
    ids=["dtype", "shape", "rank"],
)
def test_a_wrong_tensor_is_an_error_and_the_session_lives_on(add, load, open_session, x):
    add("relu", onnx_models.relu())
    session = open_session(load("relu"))

    with pytest.raises(Exception, match="x"):
        session.run({"x": x})

    np.testing.assert_array_equal(session.run({"x": np.ones((1, 3), np.float32)})["y"], [[1] * 3])


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_file_that_went_bad_is_a_load_error(add, load, open_session):
    file = add("relu", onnx_models.relu())
    model = load("relu")
    file.write_bytes(b"no model")

    with pytest.raises(ModelLoadError):
        open_session(model)


@pytest.mark.parametrize("runtime", COMPUTING, indirect=True)
def test_a_model_with_other_tensors_than_its_file_is_a_load_error(add, load, open_session):
    add("relu", onnx_models.relu())
    add("two", onnx_models.two_by_two())

    with pytest.raises(ModelLoadError, match="finds no tensor"):
        open_session(replace(load("two"), variants=load("relu").variants))


def test_a_session_says_what_runs_where(add, load, runtime, open_session):
    add("relu", onnx_models.relu())

    assert open_session(load("relu")).describe().startswith(f"{runtime.name} on cpu:0")


def test_a_runtime_has_a_version_and_says_what_it_loads(runtime):
    assert runtime.version()
    assert "cpu" in runtime.kinds
    assert ".onnx" in runtime.suffixes
