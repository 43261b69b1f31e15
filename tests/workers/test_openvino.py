"""What is OpenVINO's alone: stateful models, streams, the properties of its devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers import onnx_models
from workers.device_host import DeviceHost
from workers.model import Variant
from workers.runtimes import openvino as openvino_runtime
from workers.runtimes.base import DeviceSpec, ModelLoadError, RunError
from workers.runtimes.openvino import OpenVino, plugin_config
from workers.runtimes.openvino_graph import fix_shapes, read_graph
from workers.tensors import Item

openvino = pytest.importorskip("openvino")

CPU = DeviceSpec("cpu:0", "cpu", runtimes=("openvino",))


def save_running_sum(folder: Path) -> None:
    """A model that adds each input to what it was given before: `y = sum of all x so far`."""
    from openvino import opset13 as ops
    from openvino.op.util import Variable, VariableInfo

    info = VariableInfo()
    info.data_shape, info.data_type = openvino.PartialShape([-1, 3]), openvino.Type.f32
    info.variable_id = "total"
    variable = Variable(info)
    x = ops.parameter(openvino.PartialShape([-1, 3]), np.float32, name="x")
    x.output(0).set_names({"x"})
    start = ops.multiply(x, ops.constant(np.float32(0)))
    before = ops.read_value(start, variable)
    total = ops.add(before, x)
    total.output(0).set_names({"y"})
    keep = ops.assign(total, variable)
    made = openvino.Model([ops.result(total)], [keep], [x], "running sum")
    folder.mkdir(parents=True, exist_ok=True)
    openvino.save_model(made, folder / "model.xml", compress_to_fp16=False)


def ask(host: DeviceHost, *values: float) -> list[float]:
    items: list[Item] = [{"x": np.full(3, value, np.float32)} for value in values]
    answers = []
    for result in host.run("sum", "1", items):
        assert isinstance(result, dict), result
        answers.append(float(result["y"][0]))
    return answers


def test_a_stateful_model_forgets_between_requests_and_is_not_batched(start_on, root):
    save_running_sum(root / "sum" / "1")
    host = start_on(CPU)

    (offer,) = host.prepare()

    assert offer.max_batch == 1
    (problem,) = host.problems
    assert "keeps values between runs" in problem.reason
    assert "`stateless: true`" in problem.reason
    assert [ask(host, 2), ask(host, 5), ask(host, 1, 2)] == [[2], [5], [1, 2]]
    assert host.repository.models["sum"].cache is None


def test_a_stateful_model_declared_stateless_is_batched(start_on, root):
    save_running_sum(root / "sum")
    (root / "sum" / "model.yaml").write_text('stateless: true\nvariants: {"1": {file: model.xml}}')
    host = start_on(CPU)

    (offer,) = host.prepare()

    assert offer.max_batch > 1
    assert host.problems == []
    assert [ask(host, 1, 2, 3, 4), ask(host, 5, 6)] == [[1, 2, 3, 4], [5, 6]]
    assert host.repository.models["sum"].cache is not None


def test_streams_run_items_side_by_side_that_cannot_share_a_batch(start_on, add):
    add("stuck", onnx_models.resists_reshaping(), "max_batch: 8\nvariants: {a: {file: model.onnx}}")
    device = DeviceSpec("cpu:0", "cpu", runtimes=("openvino",), options={"streams": 3})
    model = start_on(device).repository.models["stuck"]

    session = OpenVino().load(model, model.variants[0], device, Path("/nonexistent"))

    assert session.max_batch == 3
    assert session.apart
    x = np.arange(18, dtype=np.float32).reshape(3, 2, 3) - 9
    for count in (3, 1, 2):
        outputs = session.run({"x": x[:count]})
        np.testing.assert_array_equal(outputs["y"], np.maximum(x[:count].reshape(count, 6), 0))
    session.close()


class Counted:
    """An infer request that says when it was waited for, and fails then if it is to."""

    def __init__(self, request, fails):
        self._request, self._fails = request, fails
        self.waited = 0

    def __getattr__(self, name):
        return getattr(self._request, name)

    def wait(self):
        self._request.wait()
        self.waited += 1
        if self._fails:
            raise RuntimeError("bad item")


def test_no_stream_runs_on_when_an_item_beside_it_has_failed(start_on, add):
    add("stuck", onnx_models.resists_reshaping(), "max_batch: 8\nvariants: {a: {file: model.onnx}}")
    device = DeviceSpec("cpu:0", "cpu", runtimes=("openvino",), options={"streams": 3})
    model = start_on(device).repository.models["stuck"]
    session = OpenVino().load(model, model.variants[0], device, Path("/nonexistent"))
    session._requests = [Counted(r, i == 0) for i, r in enumerate(session._requests)]

    with pytest.raises(RunError, match="bad item"):
        session.run({"x": np.zeros((3, 2, 3), np.float32)})

    assert all(request.waited for request in session._requests)


def variant(precision) -> Variant:
    return Variant("a", Path("model.onnx"), precision, None, 0, "00", fixed_batch=False)


class Plugins:
    """OpenVINO's entry point on a box with an Intel GPU and an NPU."""

    available_devices = ("CPU", "GPU", "NPU")

    def get_property(self, device: str, name: str) -> object:
        if name == "FULL_DEVICE_NAME":
            return f"Intel(R) {device}"
        return {"CPU": ["FP32", "BF16"], "GPU.0": ["FP32", "FP16"], "NPU.0": ["FP16"]}[device]


@pytest.fixture
def intel_box(monkeypatch):
    monkeypatch.setattr(openvino_runtime, "core", Plugins)


@pytest.mark.parametrize(
    ("device", "precision", "wanted"),
    [
        ("cpu:0", "fp32", "f32"),
        ("cpu:0", "fp16", "f32"),
        ("cpu:0", "bf16", "bf16"),
        ("gpu:0", "fp32", "f32"),
        ("gpu:0", "fp16", "f16"),
        ("gpu:0", "bf16", "f32"),
        ("gpu:0", "int8", "f32"),
        ("npu:0", "fp16", "f16"),
        ("npu:0", "int8", "f16"),
    ],
)
def test_a_device_never_computes_coarser_than_declared(intel_box, device, precision, wanted):
    kind = device.partition(":")[0]
    config = plugin_config(variant(precision), DeviceSpec(device, kind, (0, 1)), Path("/cache"))

    assert config["INFERENCE_PRECISION_HINT"] == wanted
    assert config["CACHE_DIR"] == "/cache"
    assert ("INFERENCE_NUM_THREADS" in config) == (kind == "cpu")


def test_an_npu_refuses_what_is_declared_finer_than_it_computes(intel_box):
    with pytest.raises(ModelLoadError, match="an NPU computes in float16, the variant is declared"):
        plugin_config(variant("fp32"), DeviceSpec("npu:0", "npu"), Path("/cache"))


def test_a_device_that_the_plugins_do_not_reach_is_said(intel_box):
    reach = OpenVino().unreachable

    assert reach(DeviceSpec("gpu:0", "gpu")) is None
    assert reach(DeviceSpec("npu:0", "npu")) is None
    assert (
        reach(DeviceSpec("gpu:1", "gpu")) == "OpenVINO finds no GPU.1 here; it finds CPU, GPU, NPU"
    )
    assert OpenVino().processor(DeviceSpec("gpu:0", "gpu")) == "Intel(R) GPU.0"
    assert OpenVino().processor(DeviceSpec("cpu:0", "cpu")) is None


def test_fixed_shapes_for_an_npu(add, load):
    yaml = "profile_shapes: {ids: [7]}\nvariants: {a: {file: model.onnx}}"
    file = add("ids", onnx_models.sequence(), yaml)
    graph = read_graph(file)

    fix_shapes(graph, load("ids"))

    assert [list(port.shape) for port in graph.inputs] == [[1, 7]]


def test_a_free_dimension_without_a_size_is_refused_on_an_npu(add, load):
    file = add("ids", onnx_models.sequence())

    with pytest.raises(ModelLoadError, match="'ids' has free dimensions; name sizes under"):
        fix_shapes(read_graph(file), load("ids"))


def test_a_session_on_an_npu_runs_items_one_at_a_time(add, load, tmp_path, monkeypatch):
    """On the CPU in the NPU's place: what is left of the way is the same."""
    yaml = "max_batch: 4\nvariants: {a: {file: model.onnx, precision: fp16}}"
    add("relu", onnx_models.relu(), yaml)
    model = load("relu")
    npu = DeviceSpec("npu:0", "npu", runtimes=("openvino",))
    monkeypatch.setattr(openvino_runtime, "openvino_name", lambda _: "CPU")
    monkeypatch.setattr(openvino_runtime, "plugin_config", lambda *_: {})

    session = OpenVino().load(model, model.variants[0], npu, tmp_path)

    assert session.max_batch == 1
    x = np.array([[-1, 2, 3]], np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
    session.close()


@pytest.mark.parametrize("config", [plugin_config, lambda *_: {}])
def test_a_device_whose_plugin_can_not_be_loaded_says_why(add, load, tmp_path, monkeypatch, config):
    add("relu", onnx_models.relu())
    model = load("relu")
    monkeypatch.setattr(openvino_runtime, "plugin_config", config)
    monkeypatch.setattr(openvino_runtime, "openvino_name", lambda _: "GPU.7")

    with pytest.raises(ModelLoadError, match="openvino: "):
        OpenVino().load(model, model.variants[0], CPU, tmp_path)
