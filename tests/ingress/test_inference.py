"""An inference of the protocol on its way to the scheduler and back."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from scheduler.errors import ExecutionFailed, InvalidInput
from scheduler.ingress.grpc.messages import put, values_of
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.inference import Inference, Inferred
from scheduler.ingress.oip.request import InferRequest, Terms
from scheduler.ingress.oip.snapshot import ModelInfo
from scheduler.tenants import ANYONE
from scheduler.wire import Header
from tests.fake_box import FakeBox, Peer
from tests.ingress.test_native_door import a_box, run, until
from tests.waiting import PATIENCE_S

X = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": X, "y": X}, "takes x, the request has x, y"),
        ({"x": X, "y": np.float32(1)}, "takes x, the request has x, y"),
        ({"y": X}, "takes x, the request has y"),
        ({"x": X.astype(np.int8)}, "'x' of model 'line-a' is float32, not int8"),
        ({"x": X[:, :3]}, r"has shape \[4\], not \[1, 3\]"),
    ],
)
def test_a_batch_of_wrong_inputs_is_told_what_is_wrong_with_them(
    tmp_path: Path, inputs: dict[str, NDArray[Any]], said: str
) -> None:
    async def test() -> None:
        loop, path = asyncio.get_running_loop(), f"{tmp_path}/doors"
        async with a_box(tmp_path) as at:
            inner = await loop.create_unix_server(at.door.for_doors, path)
            box = Box(f"unix://{path}")
            ended: asyncio.Future[Inferred | BaseException] = loop.create_future()
            arrays = {name: np.asarray(array) for name, array in inputs.items()}
            request = InferRequest("line-a", "", "", {}, arrays)
            terms = Terms(ANYONE, 1000.0, 1000.0)
            Inference(box, await box.model("line-a"), request, terms, 8, ended.set_result)
            error = await ended
            box.close()
            inner.close()
            await until(lambda: not at.door._connections)
            assert isinstance(error, InvalidInput)
            assert re.search(said, str(error)), error

    run(test)


def test_items_whose_outputs_make_no_tensor_fail_and_disturb_nobody(tmp_path: Path) -> None:
    x = {"name": "x", "dtype": "float32", "shape": [4]}
    y = {"name": "y", "dtype": "float32", "shape": [None]}
    info = ModelInfo("boxes", True, 8, (x,), (y,), {"fp32": ("cpu:0",)}, True)

    def answer(peer: Peer, header: Header) -> None:
        found = np.zeros((1, 5 + len(answered)), np.float32)
        peer.answer({**header, "tensors": {"y": found}})
        answered.append(header["id"])

    async def ask(box: Box, items: int) -> Inferred | BaseException:
        ended: asyncio.Future[Inferred | BaseException] = asyncio.get_running_loop().create_future()
        request = InferRequest("boxes", "", "", {}, {"x": np.zeros((items, 4), np.float32)})
        terms = Terms(ANYONE, 10_000.0, 10_000.0)
        Inference(box, info, request, terms, 8, ended.set_result)
        return await asyncio.wait_for(ended, PATIENCE_S)

    async def test(url: str) -> None:
        box = Box(url)
        error = await ask(box, 2)
        assert isinstance(error, ExecutionFailed)
        assert "output 'y' differs in shape between the items" in str(error)
        assert "([5] and [6])" in str(error)
        alone = await ask(box, 1)
        assert isinstance(alone, Inferred)
        assert alone.outputs["y"].shape == (1, 7)
        box.close()

    answered: list[int] = []
    with contextlib.closing(FakeBox(tmp_path / "s").start()) as fake:
        fake.on_infer = answer
        asyncio.run(test(fake.url))
        assert len(fake.peers) == 1


@pytest.mark.parametrize("value", [True, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 0.5, "text"])
def test_a_parameter_that_a_message_can_hold_comes_back(value: object) -> None:
    response = pb.ModelInferResponse()
    put(response.parameters, {"mine": value})
    assert values_of(response.parameters) == {"mine": value}
