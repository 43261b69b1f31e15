"""Servers of other people as targets of a box, where the environment has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from benchmarks.clouds import COMMANDS, MODEL, Cloud, interpreter, running_cloud
from scheduler.core.outcomes import Outcome
from tests.daemon.cloud.boxes import DIGITS, box_of, floats

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


def expected_scores() -> Any:
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"image": IMAGES})
    return scores


def test_json_and_grpc_give_the_models_scores(cloud: Cloud) -> None:
    expected = expected_scores()
    by_json = scores(triton_http, cloud.http, binary_data=False)
    by_grpc = scores(triton_grpc, cloud.grpc)
    np.testing.assert_allclose(by_json, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_grpc, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_it_serves_as_a_target_of_a_box(cloud: Cloud, tmp_path: Path, scheme: str) -> None:
    if scheme == "http" and cloud.name == "mlserver":
        pytest.skip("MLServer takes no binary data over HTTP, which targets send")

    async def run() -> None:
        url = f"{scheme}://{getattr(cloud, scheme)}"
        async with box_of(url, tmp_path, DIGITS) as box:
            await box.until(lambda: box.is_up, 60)
            asked = [box.post(x, 20_000, model="digits", tensor="image")[1] for x in IMAGES]
            answers = [await answer for answer in asked]
            assert [answer.outcome for answer in answers] == [Outcome.COMPLETED] * len(IMAGES)
            found = [floats(answer) for answer in answers]
            np.testing.assert_allclose(found, expected_scores(), rtol=1e-4, atol=1e-5)

    asyncio.run(run())
