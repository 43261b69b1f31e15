"""What only a machine with a GPU can show: `pytest -m gpu`, and `-m tensorrt` with TensorRT.

The conformance suite in `test_runtimes.py` runs on the GPU as well, under the same markers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers import onnx_models
from tests.workers.conftest import StartOn
from workers.device_host import DeviceHost
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec
from workers.runtimes.cuda import Cuda, gpu_identity
from workers.telemetry import probe_for

DATA = Path(__file__).parents[3] / "shared" / "data" / "models"
SQUEEZENET = DATA / "squeezenet_fp16" / "SqueezeNet_fp16.onnx"

GPU = DeviceSpec("gpu:0", "gpu")
CUDA = pytest.param("onnxruntime-cuda", marks=pytest.mark.gpu)
TENSORRT = pytest.param("tensorrt", marks=[pytest.mark.gpu, pytest.mark.tensorrt])
TENSORRT_PROVIDER = pytest.param(
    "onnxruntime-tensorrt", marks=[pytest.mark.gpu, pytest.mark.tensorrt]
)
EACH = pytest.mark.parametrize("runtime", [CUDA, TENSORRT_PROVIDER, TENSORRT])


def need(*names: str) -> None:
    """Skip, with the reason, where a runtime cannot be used."""
    for name in names:
        runtime = RUNTIMES[name]()
        reason = runtime.missing() or runtime.unreachable(GPU)
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture
def start(start_on: StartOn) -> StartOn:
    def start_host(*runtimes: str, max_batch: int = 4, **options) -> DeviceHost:
        need(*runtimes)
        device = DeviceSpec("gpu:0", "gpu", runtimes=runtimes, options=options)
        return start_on(device, max_batch)

    return start_host


@EACH
def test_a_host_serves_from_the_gpu_what_the_cpu_agrees_with(start, add, runtime):
    add("net", onnx_models.small_network("float32"))
    add("dense", onnx_models.dense())
    host = start(runtime)

    offers = list(host.prepare())

    assert host.problems == []
    assert {offer.model: offer.runtime for offer in offers} == {"net": runtime, "dense": runtime}
    x = np.linspace(-1, 1, 128, dtype=np.float32)
    for result in host.run("dense", "1", [{"x": x}, {"x": -x}, {"x": x}]):
        assert isinstance(result, dict)
        assert np.abs(result["y"]).max() <= 1


@EACH
@pytest.mark.skipif(not SQUEEZENET.exists(), reason=f"no published models at {DATA}")
def test_published_outputs_are_reproduced(start, root, runtime):
    (root / "squeezenet").mkdir()
    (root / "squeezenet" / "model.onnx").symlink_to(SQUEEZENET)
    (root / "squeezenet" / "model.yaml").write_text(
        "variants: {a: {file: model.onnx, precision: fp16}}"
    )
    host = start(runtime)
    assert [offer.runtime for offer in host.prepare()] == [runtime]

    for path in sorted(SQUEEZENET.parent.glob("*.io.npz")):
        case = np.load(path)
        (result,) = host.run("squeezenet", "a", [{"data_0": case["in:data_0"][0]}])
        assert isinstance(result, dict)
        expected = case["out:softmaxout_1"][0]
        np.testing.assert_allclose(result["softmaxout_1"], expected, rtol=5e-2, atol=1e-2)


@pytest.mark.gpu
def test_a_node_that_the_gpu_cannot_run_is_refused(start, add):
    # The CUDA provider has no kernel for this one, and the CPU must not step in.
    add("found", onnx_models.found_objects())
    add("net", onnx_models.small_network("float32"))
    host = start("onnxruntime-cuda")

    offered = [offer.model for offer in host.prepare()]

    assert "net" in offered
    assert "found" in offered or any("onnxruntime" in p.reason for p in host.problems)


@pytest.mark.gpu
def test_a_gpu_tells_what_it_does():
    need("onnxruntime-cuda")

    device = DeviceSpec("gpu:0", "gpu", runtimes=("onnxruntime-cuda",))
    reading = probe_for(device, Path("/")).read()

    assert reading.clock_hz
    assert reading.temperature_c is not None
    assert gpu_identity().name


@pytest.mark.gpu
@pytest.mark.tensorrt
def test_the_box_serves_before_an_engine_is_built_and_the_faster_one_takes_over(start, add):
    add("net", onnx_models.small_network("float32"))
    host = start("onnxruntime-cuda", "tensorrt")
    offers = host.prepare()

    assert next(offers).runtime == "onnxruntime-cuda"
    image = {"image": np.zeros((3, 8, 8), np.float32)}
    assert isinstance(host.run("net", "1", [image])[0], dict)
    assert all(offer.runtime == "tensorrt" for offer in offers)
    assert isinstance(host.run("net", "1", [image])[0], dict)


@pytest.mark.gpu
@pytest.mark.tensorrt
def test_an_engine_is_kept_and_a_changed_one_is_built_again(start, add, tmp_path):
    add("net", onnx_models.small_network("float32"))
    list(start("tensorrt").prepare())
    texts: list[str] = []

    list(start("tensorrt").prepare(lambda done, total, text: texts.append(text)))
    assert not any("building" in text for text in texts)

    (engine,) = (tmp_path / "state").rglob("model.engine")
    engine.write_bytes(engine.read_bytes()[:-1] + b"\0\0")
    host = start("tensorrt")
    list(host.prepare(lambda done, total, text: texts.append(text)))
    assert any("building" in text for text in texts)
    assert any("not the file that this box wrote" in problem.reason for problem in host.problems)


@pytest.mark.gpu
@pytest.mark.tensorrt
def test_batches_run_as_cuda_graphs(add, load, tmp_path, monkeypatch):
    need("tensorrt")
    add(
        "net",
        onnx_models.small_network("float32"),
        "max_batch: 4\nvariants: {a: {file: model.onnx}}",
    )
    model = load("net")
    runtime = RUNTIMES["tensorrt"]()
    runtime.build(model, model.variants[0], GPU, tmp_path, lambda text: None)  # type: ignore[attr-defined]
    session = runtime.load(model, model.variants[0], GPU, tmp_path)
    launched: list[object] = []
    launch = Cuda.launch

    def noted(cuda: Cuda, graph: object, stream: object) -> None:
        launched.append(graph)
        launch(cuda, graph, stream)

    monkeypatch.setattr(Cuda, "launch", noted)

    for batch in (1, 2, 4, 2):
        session.run({"image": np.zeros((batch, 3, 8, 8), np.float32)})

    assert launched[1] is launched[3]
    assert len(set(map(id, launched))) == 3
    session.close()
