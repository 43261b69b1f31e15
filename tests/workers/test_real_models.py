"""Published models with published inputs and outputs, on every CPU runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers.conftest import QUICK
from workers.device_host import DeviceHost
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec

DATA = Path(__file__).parents[3] / "shared" / "data" / "models"
CASES = {
    "squeezenet_fp16/SqueezeNet_fp16.onnx": ("fp16", "SqueezeNet_fp16.*.io.npz", 3),
    "ultraface_slim320/version-slim-320.onnx": ("fp32", "version-slim-320.*.io.npz", 1),
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no published models at {DATA}")


@pytest.mark.parametrize("file", CASES)
@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_published_outputs_are_reproduced(root, tmp_path, name, file):
    reason = RUNTIMES[name]().missing()
    if reason is not None:
        pytest.skip(reason)
    precision, pattern, samples = CASES[file]
    (root / "model").mkdir()
    (root / "model" / "model.onnx").symlink_to(DATA / file)
    (root / "model" / "model.yaml").write_text(
        f"variants: {{a: {{file: model.onnx, precision: {precision}}}}}"
    )
    spec = DeviceSpec("cpu:0", "cpu", runtimes=(name,))
    host = DeviceHost(spec, root, tmp_path / "state", samples, QUICK)
    (offer,) = host.prepare()
    published = [np.load(path) for path in sorted((DATA / file).parent.glob(pattern))]
    items = [{key[3:]: case[key][0] for key in case if key.startswith("in:")} for case in published]

    results = host.run("model", "a", items)
    host.close()

    assert offer.runtime == name
    # Both files fix the batch at 1, which only OpenVINO can change.
    problems = [problem.reason.partition(":")[0] for problem in host.problems]
    assert problems == ["served in batches of at most 1"] * (name == "onnxruntime" and samples > 1)
    assert len(results) == samples
    for case, result in zip(published, results, strict=True):
        assert isinstance(result, dict)
        for key in (key for key in case if key.startswith("out:")):
            expected = case[key][0]
            assert result[key[4:]].dtype == expected.dtype
            np.testing.assert_allclose(result[key[4:]], expected, rtol=2e-3, atol=2e-3)
