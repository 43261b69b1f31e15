"""The servers that cloud targets are tried on answer as we think they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from benchmarks.clouds import COMMANDS, MODEL, Cloud, interpreter, running_cloud

IMAGES = np.linspace(0, 1, 192, dtype=np.float32).reshape(3, 1, 8, 8)


@pytest.fixture(scope="module", params=list(COMMANDS))
def cloud(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if interpreter(request.param) is None:
        pytest.skip(f"LAXITY_{request.param.upper()}_PYTHON names no Python that has it")
    with running_cloud(request.param, tmp_path_factory.mktemp(request.param)) as cloud:
        yield cloud


def scores(module: Any, at: str, **data: bool) -> Any:
    tensor = module.InferInput("image", list(IMAGES.shape), "FP32")
    tensor.set_data_from_numpy(IMAGES, **data)
    with module.InferenceServerClient(at) as client:
        return client.infer("digits", [tensor]).as_numpy("scores")


def test_json_and_grpc_give_the_models_scores(cloud: Cloud) -> None:
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["scores"], {"image": IMAGES})
    by_json = scores(triton_http, cloud.http, binary_data=False)
    by_grpc = scores(triton_grpc, cloud.grpc)
    np.testing.assert_allclose(by_json, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_grpc, expected, rtol=1e-4, atol=1e-5)
