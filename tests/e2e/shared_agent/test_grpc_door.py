"""Clients that people own already, unchanged, at the gRPC door of a real agent."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.http_requests import SLOW, X, latency_ms
from tests.e2e.running_agent import RunningAgent

NO_ONE_S = 30


@pytest.fixture(scope="module")
def grpc_at(shared_agent: RunningAgent) -> str:
    return shared_agent.address("grpc")


@pytest.fixture
def client(grpc_at: str) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(grpc_at) as client:
        yield client


def grpc_input(values: Any) -> Any:
    array = np.asarray(values, np.float32)
    tensor = triton_grpc.InferInput("x", list(array.shape), "FP32")
    return tensor.set_data_from_numpy(array)


def test_tritonclient_over_grpc(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("relu", "1")
    assert not client.is_model_ready("relu", "9")
    assert not client.is_model_ready("added-later")
    assert client.get_model_metadata("relu").inputs[0].shape == [-1, 3]
    assert client.get_model_config("relu").config.max_batch_size == 32
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    answer = client.infer("relu", [grpc_input(x)], request_id="7", timeout=5_000_000, priority=1)
    np.testing.assert_array_equal(answer.as_numpy("y"), x.clip(0))
    response = answer.get_response()
    assert (response.id, response.parameters["outcome"].string_param) == ("7", "completed")
    top = triton_grpc.InferRequestedOutput("y", class_count=2)
    texts = client.infer("relu", [grpc_input(x[3:])], outputs=[top]).as_numpy("y")
    assert texts.tolist() == [[b"5.000000:2", b"4.000000:1"]]
    counted = client.get_inference_statistics("relu").model_stats
    assert sum(entry.inference_count for entry in counted) >= 5


def test_typed_contents_are_taken_too(grpc_at: str) -> None:
    message = service_pb2.ModelInferRequest(model_name="pair")
    a = message.inputs.add(name="a", datatype="FP32", shape=[3])
    a.contents.fp32_contents.extend([0, 1, 2])
    b = message.inputs.add(name="b", datatype="INT32", shape=[3])
    b.contents.int_contents.extend([10, 10, 10])
    with grpc.insecure_channel(grpc_at) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(message)
        raw = {
            t.name: r for t, r in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        np.testing.assert_array_equal(np.frombuffer(raw["sum"], np.float32), [10, 11, 12])
        message.raw_input_contents.append(bytes(12))
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_refusals_over_grpc_carry_the_counter_offer(
    client: Any, grpc_at: str, shared_agent: RunningAgent
) -> None:
    with pytest.raises(InferenceServerException, match="not in the repository") as unknown:
        client.infer("rel", [grpc_input(X)])
    assert unknown.value.status() == "StatusCode.NOT_FOUND"
    hopeless_us = int(latency_ms(shared_agent, "slow") * 250)
    for _ in range(100):
        with pytest.raises(InferenceServerException) as refused:
            client.infer("slow", [grpc_input(SLOW)], timeout=hopeless_us)
        if refused.value.status() != "StatusCode.DEADLINE_EXCEEDED":
            break  # it was not over before it could be judged, as where others want the processor
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    metadata = dict(refused.value.__cause__.trailing_metadata() if refused.value.__cause__ else ())
    if metadata:  # tritonclient keeps the cause in some versions alone
        assert json.loads(metadata["laxity-detail"])["earliest_ms"] > 0


def test_a_grpc_deadline_is_a_deadline(grpc_at: str, shared_agent: RunningAgent) -> None:
    hopeless_s = latency_ms(shared_agent, "slow") / 4000
    message = service_pb2.ModelInferRequest(model_name="slow")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(bytes(4))
    with grpc.insecure_channel(grpc_at) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ServerLive(service_pb2.ServerLiveRequest())
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(message, timeout=hopeless_s)
        # Whichever comes first: the box's no, or the client's own clock on a slow machine.
        assert refused.value.code() in (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        assert stub.ModelInfer(message, timeout=NO_ONE_S).model_name == "slow"


def test_a_stream_answers_in_order_and_an_error_is_one_requests_own(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(10):
        client.async_stream_infer(
            "relu" if number != 4 else "none", [grpc_input(X)], request_id=str(number)
        )
    found = [answers.get(timeout=NO_ONE_S) for _ in range(10)]
    client.stop_stream()
    assert [result and result.get_response().id for result, _ in found] == [
        *("0", "1", "2", "3"),
        None,
        *("5", "6", "7", "8", "9"),
    ]
    assert "not in the repository" in str(found[4][1])


def test_the_asyncio_client_with_a_stream(grpc_at: str) -> None:
    async def run() -> list[str]:
        async with triton_grpc_aio.InferenceServerClient(grpc_at) as client:
            answers = await asyncio.gather(
                *(client.infer("relu", [grpc_input(X)]) for _ in range(10))
            )
            assert all((answer.as_numpy("y") == [0, 0, 2]).all() for answer in answers)

            async def requests() -> Any:
                for number in range(5):
                    yield {
                        "model_name": "relu",
                        "inputs": [grpc_input(X)],
                        "request_id": str(number),
                    }

            return [
                result.get_response().id
                async for result, error in client.stream_infer(requests())
                if error is None
            ]

    assert asyncio.run(run()) == ["0", "1", "2", "3", "4"]


def test_health_and_reflection(grpc_at: str) -> None:
    with grpc.insecure_channel(grpc_at) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        name = "inference.GRPCInferenceService"
        for service in ("", name):
            state = stub.Check(health_pb2.HealthCheckRequest(service=service)).status
            assert state == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError, match="there is no service 'xxx"):
            stub.Check(health_pb2.HealthCheckRequest(service="x" * 20_000))
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert name in services
