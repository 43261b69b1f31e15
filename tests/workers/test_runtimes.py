"""What every runtime has to do, whichever library is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from scheduler.core.signature import DTYPES
from scheduler.own_pages import OwnPages
from scheduler.shared_pages import opened
from tests.workers import onnx_models
from workers.model import Model
from workers.repository import load_repository
from workers.runtimes import RUNTIMES
from workers.runtimes.base import Builder, DeviceSpec, ModelLoadError, RunError, Session
from workers.sampling import sample_items
from workers.stacking import stack_items

Open = Callable[[Model], Session]


@dataclass(frozen=True)
class Place:
    """A runtime and a device for it."""

    runtime: str
    device: DeviceSpec

    def __str__(self) -> str:
        return f"{self.runtime}-{self.device.kind}"


GPU = DeviceSpec("gpu:0", "gpu")
COMPUTING = [
    pytest.param(Place("openvino", DeviceSpec("cpu:0", "cpu", cores=(0,))), id="openvino"),
    pytest.param(Place("onnxruntime", DeviceSpec("cpu:0", "cpu", cores=(0,))), id="onnxruntime"),
    pytest.param(Place("openvino", GPU), id="openvino-gpu"),
    pytest.param(Place("onnxruntime-cuda", GPU), id="onnxruntime-cuda", marks=pytest.mark.gpu),
    pytest.param(
        Place("onnxruntime-tensorrt", GPU),
        id="onnxruntime-tensorrt",
        marks=[pytest.mark.gpu, pytest.mark.tensorrt],
    ),
    pytest.param(
        Place("tensorrt", GPU), id="tensorrt", marks=[pytest.mark.gpu, pytest.mark.tensorrt]
    ),
]
EMULATED = pytest.param(
    Place(
        "emulated",
        DeviceSpec("cpu:0", "cpu", runtimes=("emulated",), options={"base_ms": 0.0}),
    ),
    id="emulated",
)

REFUSED = {
    "openvino-cpu": {"float64"},
    "openvino-gpu": {"float64"},
    "onnxruntime-cpu": set(),
    # It takes uint8 only where it is cast to floats at once (DataType.UINT8 in its reference).
    "tensorrt-gpu": {"float64", "int16", "uint8", "uint16", "uint32", "uint64"},
}
"""The dtypes that a runtime must refuse; every other one it must pass through unchanged."""


@pytest.fixture(params=[*COMPUTING, EMULATED])
def place(request):
    found: Place = request.param
    runtime = RUNTIMES[found.runtime]()
    reason = runtime.missing() or runtime.unreachable(found.device)
    if reason is not None:
        pytest.skip(reason)
    return found


@pytest.fixture
def runtime(place):
    return RUNTIMES[place.runtime]()


@pytest.fixture
def open_session(place, runtime, tmp_path):
    sessions = []

    def open_one(model: Model) -> Session:
        variant = model.variants[0]
        if isinstance(runtime, Builder):
            runtime.build(model, variant, place.device, tmp_path, lambda text: None)
        session: Session = runtime.load(model, variant, place.device, tmp_path)
        sessions.append(session)
        return session

    yield open_one
    for session in sessions:
        session.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_every_dtype_passes_through_unchanged_or_is_refused(add, load, place, open_session, dtype):
    add("passes", onnx_models.passes_on(dtype))
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(dtype)
    if dtype in REFUSED.get(str(place), ()):
        with pytest.raises(ModelLoadError, match=f"'x'|{dtype}|TensorRT does not build it"):
            open_session(load("passes"))
        return

    y = open_session(load("passes")).run({"x": x})["y"]

    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, (~x if dtype == "bool" else x).reshape(2, 2, 2))


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_text_is_taken_and_given_or_is_refused(add, load, place, open_session):
    add("words", onnx_models.words())
    model = load("words")
    text = np.array([[b"eins", "größer".encode()], [b"", b"12345678"], [b"87654321", b"zwei"]])
    if (place.runtime, place.device.kind) != ("onnxruntime", "cpu"):
        with pytest.raises(ModelLoadError, match="'text' is string; use onnxruntime on a CPU"):
            open_session(model)
        return
    session = open_session(model)

    for given in (text, text.astype("S40")):
        outputs = session.run({"text": given})
        assert outputs["same"].tolist() == text.tolist()
        assert outputs["code"].tolist() == [[1, 0], [0, 0], [0, 2]]
    assert len(session.run(stack_items(sample_items(model, 3)))["same"]) == 3


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_a_wide_integer_is_exact_or_refused(add, load, place, open_session, value):
    add("passes", onnx_models.passes_on("int64"))
    session = open_session(load("passes"))
    x = np.array([[value, 0, 1, 2]])

    if place.runtime == "openvino":
        with pytest.raises(RunError, match=r"outside -2147483648\.\.2147483647"):
            session.run({"x": x})
    else:
        np.testing.assert_array_equal(session.run({"x": x})["y"].ravel(), x.ravel())


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_an_integer_at_the_edge_of_int32_is_exact(add, load, open_session):
    add("passes", onnx_models.passes_on("int64"))
    x = np.array([[2**31 - 1, -(2**31), 0, 1]])

    y = open_session(load("passes")).run({"x": x})["y"]

    np.testing.assert_array_equal(y.ravel(), x.ravel())


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
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


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_a_free_dimension_may_change_between_runs(add, load, open_session):
    ranges = "shape_ranges: {ids: {least: [1], most: [16]}}"
    add("ids", onnx_models.sequence(), f"{ranges}\nvariants: {{a: {{file: model.onnx}}}}")
    session = open_session(load("ids"))

    for length in (3, 7, 2):
        ids = np.arange(2 * length).reshape(2, length)
        np.testing.assert_array_equal(session.run({"ids": ids})["sum"], ids.sum(axis=1))


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_arithmetic_on_shapes_is_served(add, load, open_session):
    add("flat", onnx_models.flattened())
    session = open_session(load("flat"))

    for batch in (1, 3):
        x = np.arange(6 * batch, dtype=np.float32).reshape(batch, 2, 3)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x.reshape(batch, 6))


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_a_model_without_a_batch_dimension_takes_items_as_they_are(add, load, open_session):
    add("scalar", onnx_models.scalar())
    session = open_session(load("scalar"))

    y = session.run({"x": np.array(2.5, np.float32)})["y"]

    assert session.max_batch == 1
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.item()) == ((), 5.0)


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_a_fixed_batch_is_exact_at_every_size_the_session_claims(add, load, open_session):
    add("relu", onnx_models.relu(batch=1))
    session = open_session(load("relu"))
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)[: session.max_batch]

    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("made", [onnx_models.mixes_items(1), onnx_models.resists_reshaping()])
@pytest.mark.parametrize("place", COMPUTING, indirect=True)
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

    cpu = DeviceSpec("cpu:0", "cpu", cores=(0,))
    session = RUNTIMES["openvino"]().load(model, model.variants[0], cpu, tmp_path)

    assert session.max_batch == 5


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
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


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
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


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
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


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_a_file_that_went_bad_is_a_load_error(add, load, open_session):
    file = add("relu", onnx_models.relu())
    model = load("relu")
    file.write_bytes(b"no model")

    with pytest.raises(ModelLoadError):
        open_session(model)


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_a_model_with_other_tensors_than_its_file_is_a_load_error(add, load, open_session):
    add("relu", onnx_models.relu())
    add("two", onnx_models.two_by_two())

    with pytest.raises(ModelLoadError, match="finds no tensor"):
        open_session(replace(load("two"), variants=load("relu").variants))


def test_a_runtime_has_a_version_and_says_what_it_loads(place, runtime):
    assert runtime.version()
    assert runtime.name == place.runtime
    assert place.device.kind in runtime.kinds
    assert ".onnx" in runtime.suffixes


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
def test_an_empty_batch_has_an_empty_answer_or_is_refused(add, load, place, open_session):
    add("two", onnx_models.two_by_two())
    session = open_session(load("two"))
    empty = {"a": np.zeros((0, 3), np.float32), "b": np.zeros((0, 3), np.int32)}

    if place.runtime == "tensorrt":
        with pytest.raises(RunError, match="no profile of the engine covers"):
            session.run(empty)
    else:
        outputs = session.run(empty)
        assert {name: array.shape for name, array in outputs.items()} == {
            "sum": (0, 3),
            "total": (0,),
        }
    full = stack_items(sample_items(load("two"), 2))
    np.testing.assert_allclose(session.run(full)["sum"], full["a"] + full["b"], rtol=1e-6)


ANSWERS = {
    "convolution fp32": (onnx_models.small_network("float32"), 1e-5),
    "convolution fp16": (onnx_models.small_network("float16"), 1e-2),
    "dense": (onnx_models.dense(), 1e-5),
    "integers": (onnx_models.integer_arithmetic(), 0),
    "logic": (onnx_models.logic(), 0),
    "mixed": (onnx_models.two_by_two(), 1e-6),
}


def in_memory_of_others(array):
    """A copy where a library that writes to it ends the process, as a worker gets large inputs."""
    pages = OwnPages(array.nbytes)
    pages.block(0, array.nbytes)[:] = np.ascontiguousarray(array).view(np.uint8).ravel()
    mapped = opened(pages.where, writable=False).block(0, array.nbytes)
    return np.ndarray(array.shape, array.dtype, mapped.data)


@pytest.mark.parametrize("place", COMPUTING, indirect=True)
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("mapped", [False, True], ids=["own", "mapped"])
def test_answers_are_those_of_the_onnx_reference(
    add, load, place, open_session, name, batch, mapped
):
    made, tolerance = ANSWERS[name]
    precision = "fp16" if "fp16" in name else "fp32"
    yaml = f"variants: {{a: {{file: model.onnx, precision: {precision}}}}}"
    add("model", made, yaml)
    model = load("model")
    inputs = stack_items(sample_items(model, batch, seed=batch))
    names = [spec.name for spec in model.signature.outputs]
    expected = ReferenceEvaluator(made).run(names, inputs)
    if mapped:
        inputs = {name: in_memory_of_others(array) for name, array in inputs.items()}

    outputs = open_session(model).run(inputs)

    assert list(outputs) == names
    for output, want in zip(outputs.values(), expected, strict=True):
        assert output.dtype == want.dtype
        scale = max(1.0, float(np.abs(want.astype(np.float64)).max()))
        np.testing.assert_allclose(output, want, rtol=0, atol=tolerance * scale)


def test_a_bfloat16_tensor_says_what_is_accepted(root, add):
    bfloat16 = TensorProto.BFLOAT16
    ends = [helper.make_tensor_value_info(name, bfloat16, ["N"]) for name in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    add("brain", onnx_models.model([node], ends[:1], ends[1:]))

    (problem,) = load_repository(root).problems

    assert "tensor 'x' is bf16; accepted are bool, int8" in problem.reason
