"""Batches on their way out and back: whatever the shapes, items come back as they went."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from scheduler.core.requests import RequestClass
from scheduler.core.signature import STRING, Signature, TensorSpec
from scheduler.daemon.cloud.endpoint import Inference, InputTensor, OutputTensor, RemoteError
from scheduler.daemon.cloud.grpc_endpoint import request_bytes
from scheduler.daemon.cloud.http_messages import (
    HEADER_LENGTH,
    binary_request,
    inferred,
    json_request,
)
from scheduler.daemon.cloud.tensors import CloudModel, split, stacked
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.shrinking import Shrinking
from scheduler.datatypes import DATATYPES
from scheduler.wire import pack_tensors, unpack_tensors
from workers.link import ModelCard

DTYPES = st.sampled_from(["float32", "uint8", "int64", "bool", STRING])
SPECS = st.lists(st.tuples(DTYPES, st.lists(st.integers(0, 4), max_size=3)), min_size=1, max_size=3)


def model_of(specs: list[tuple[str, list[int]]]) -> CloudModel:
    """A model that gives what it takes."""
    tensors = tuple(
        TensorSpec(f"t{index}", dtype, tuple(shape)) for index, (dtype, shape) in enumerate(specs)
    )
    card = ModelCard("m", "", Signature(tensors, tensors, True), ("v",), 8)
    return CloudModel(card, "m", "v", "", True, 8, Shrinking(card, frozenset()))


def submission(arrays: dict[str, NDArray[Any]]) -> Submission:
    specs, buffers = pack_tensors(arrays)
    body = memoryview(b"".join(buffers))
    return Submission(RequestClass("m"), specs, body, 0, 3, 1.0, False, lambda _: None)


def filled(model: CloudModel, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.integers(0, 2, spec.shape).astype(spec.dtype)  # type: ignore[arg-type]
        if spec.dtype != STRING
        else rng.integers(0, 10 ** (1 + seed), spec.shape).astype("S9")  # type: ignore[arg-type]
        for spec in model.card.signature.inputs
    }


@given(SPECS, st.integers(1, 5))
def test_what_goes_out_comes_back_item_by_item(specs: list[tuple[str, list[int]]], count: int):
    model = model_of(specs)
    items = [filled(model, seed) for seed in range(count)]
    sent = stacked(model, [submission(item) for item in items])
    echoed = {
        tensor.name: OutputTensor(
            tensor.datatype, tensor.shape, memoryview(b"".join(bytes(p) for p in tensor.parts))
        )
        for tensor in sent
    }
    for item, (described, body) in zip(items, split(model, echoed, count), strict=True):
        back = unpack_tensors(described, body)
        assert {name: array.tolist() for name, array in back.items()} == {
            name: array.tolist() for name, array in item.items()
        }


@given(SPECS, st.integers(1, 5))
def test_messages_that_are_put_together_by_hand_are_those_of_protobuf(
    specs: list[tuple[str, list[int]]], count: int
):
    model = model_of(specs)
    tensors = stacked(model, [submission(filled(model, seed)) for seed in range(count)])
    message = request_bytes(Inference("m", "v", tensors, ["y"], 1.0, 0.5))
    parsed = pb.ModelInferRequest.FromString(message)
    assert (parsed.model_name, parsed.model_version) == ("m", "v")
    assert parsed.parameters["timeout"].int64_param == 500_000
    assert [output.name for output in parsed.outputs] == ["y"]
    for tensor, said, raw in zip(tensors, parsed.inputs, parsed.raw_input_contents, strict=True):
        assert (said.name, said.datatype, tuple(said.shape)) == tensor[:3]
        assert raw == b"".join(bytes(part) for part in tensor.parts)


def test_tensors_of_any_size_are_put_together_right():
    for size in (0, 1, 127, 128, 16_384, 3_000_000):
        model = model_of([("uint8", [size])])
        tensors = stacked(model, [submission({"t0": np.ones(size, np.uint8)})])
        inference = Inference("m", "", tensors, ["y"], 1.0, 1.0)
        [raw] = pb.ModelInferRequest.FromString(request_bytes(inference)).raw_input_contents
        headers, body = binary_request(inference)
        assert raw == body[int(headers[HEADER_LENGTH]) :] == b"\1" * size


@given(SPECS, st.integers(1, 5))
def test_what_goes_out_as_json_comes_back_item_by_item(
    specs: list[tuple[str, list[int]]], count: int
):
    model = model_of(specs)
    items = [filled(model, seed) for seed in range(count)]
    sent = stacked(model, [submission(item) for item in items])
    _, body = json_request(Inference("m", "", sent, [], 1.0, 1.0))
    said = orjson.loads(body)
    echoed = inferred({}, orjson.dumps({"outputs": said["inputs"]}), len(body))
    for item, (described, back) in zip(items, split(model, echoed.outputs, count), strict=True):
        assert {
            name: array.tolist() for name, array in unpack_tensors(described, back).items()
        } == {name: array.tolist() for name, array in item.items()}


@given(st.sampled_from(["float16", "float32", "float64"]), st.data())
def test_json_keeps_every_finite_value_and_refuses_the_others(dtype: str, data: st.DataObject):
    width = np.dtype(dtype).itemsize * 8
    values = data.draw(st.lists(st.floats(width=width, allow_nan=True), min_size=1, max_size=5))  # type: ignore[arg-type]
    array = np.array(values, dtype)
    tensor = InputTensor("x", DATATYPES[dtype], array.shape, [array.tobytes()])
    inference = Inference("m", "", [tensor], [], 1.0, 1.0)
    if not np.isfinite(array).all():
        with pytest.raises(RemoteError, match="'x' has infinities or NaN"):
            json_request(inference)
        return
    said = orjson.loads(json_request(inference)[1])
    echoed = inferred({}, orjson.dumps({"outputs": said["inputs"]}), 0)
    assert bytes(echoed.outputs["x"].raw) == array.tobytes()
