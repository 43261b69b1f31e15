"""Calls of the gRPC door: what they hold, and what is left when they end."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from benchmarks.ports import free_port
from scheduler.config.box import Config
from scheduler.errors import Overloaded
from scheduler.ingress.grpc import health
from scheduler.ingress.grpc.callers import Callers
from scheduler.ingress.grpc.messages import put
from scheduler.ingress.grpc.reading import Places, Reading
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.grpc.service import InferenceService
from scheduler.ingress.held import Held
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import Access, Tenant, hash_of, new_token
from tests.fake_box import ignore
from tests.ingress.test_embedded_door import OneModel, box, memory
from tests.ingress.test_native_door import run, until

__all__ = ["box", "memory"]

CONTEXT = SimpleNamespace(invocation_metadata=lambda: (), auth_context=dict)
NOBODY = Access([Tenant(name="a", tokens=(hash_of(new_token()),))])


def a_call(**more: Any) -> Any:
    """The context of a call from loopback, which raises why it is refused."""

    async def abort(code: Any, words: str, _metadata: Any) -> None:
        raise grpc.RpcError(code, words)

    given = {
        "peer": lambda: "ipv4:127.0.0.1",
        "time_remaining": lambda: None,
        "invocation_metadata": lambda: (),
        "add_done_callback": lambda _: None,
        "abort": abort,
    }
    return SimpleNamespace(**given | more)


async def two_and(end: asyncio.Event | Exception) -> AsyncIterator[Any]:
    for name in "ab":
        yield pb.ModelInferRequest(id=name)
    if isinstance(end, Exception):
        raise end
    await end.wait()


def answers(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    service = SimpleNamespace(box=None, compat="laxity")
    door = InferenceService(cast(Service, service), Callers(NOBODY), Held(1))
    return door.ModelStreamInfer(requests, CONTEXT)


def test_a_stream_that_is_left_leaves_nothing_behind() -> None:
    async def test() -> None:
        stream = answers(two_and(asyncio.Event()))
        assert [(await anext(stream)).infer_response.id for _ in range(2)] == ["a", "b"]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


def test_a_message_that_comes_as_its_stream_is_left_is_not_counted_for_ever() -> None:
    held = Held(10**6)
    callers = Callers(Access())
    service = SimpleNamespace(box=None, compat="laxity", draining=True)
    handler = SimpleNamespace(
        stream_stream=InferenceService(cast(Service, service), callers, held).ModelStreamInfer,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )
    context = a_call()

    async def test() -> None:
        reading = Reading(callers, held, Held(8), Held(8), Places(8, 10.0), 10**6)
        coming: asyncio.Queue[bytes] = asyncio.Queue()

        async def messages() -> AsyncIterator[bytes]:
            while True:
                yield await coming.get()

        stream = cast(Any, reading._many_to_many(handler)(messages(), context))
        coming.put_nowait(pb.ModelInferRequest(id="a").SerializeToString())
        assert await anext(stream)
        coming.put_nowait(pb.ModelInferRequest(id="b").SerializeToString())
        await stream.aclose()
        for _ in range(5):
            await asyncio.sleep(0)
        assert held.count == 0

    run(test)


@pytest.mark.parametrize("end", ["itself", "error"])
def test_what_was_asked_before_a_stream_ends_is_answered(end: str) -> None:
    async def test() -> None:
        over = asyncio.Event()
        over.set()
        stream = cast(Any, answers(two_and(over if end == "itself" else Overloaded("full"))))
        async with aclosing(stream):
            assert [(await anext(stream)).infer_response.id for _ in range(2)] == ["a", "b"]
            with pytest.raises(StopAsyncIteration if end == "itself" else Overloaded):
                await anext(stream)

    run(test)


def test_what_a_request_has_elsewhere_counts_as_its_message_does(
    box: OneModel, memory: SharedMemory
) -> None:
    box.on_infer = ignore
    message = pb.ModelInferRequest(model_name="digits")
    tensor = message.inputs.add(name="image", datatype="FP32", shape=[1, 100_000])
    put(tensor.parameters, {"shared_memory_region": "r", "shared_memory_byte_size": 400_000})

    context = a_call()

    async def test() -> None:
        defaults = Defaults(60_000.0, {})
        service = Service(Box(box.url), memory, defaults, "laxity", 8, "info", 10**6)
        held = Held(600_000)
        door = InferenceService(service, Callers(Access()), held)
        asked = [asyncio.ensure_future(door.ModelInfer(message, context)) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(grpc.RpcError, match="requests hold 600000 bytes already"):
            await refused
        assert held.count == 400_000
        waiting.cancel()
        await asyncio.wait([waiting])
        assert held.count == 0
        service.box.close()

    run(test)


def test_who_watches_the_health_does_not_hold_up_the_end() -> None:
    async def test() -> None:
        defaults = Defaults.of(Config().doors, Config().limits)
        box = Box("unix:///none")
        service = Service(box, SharedMemory(None), defaults, "laxity", 256, "info", 10**6)
        port = free_port()
        door = GrpcServer(service, Config(), Access(), [f"tcp://127.0.0.1:{port}"])
        await door.open()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            service.draining = True
            await asyncio.wait_for(door.drain(3_600), 10)
            assert await watching.read() is grpc.aio.EOF
        box.close()

    asyncio.run(test())


def test_who_watches_the_health_does_so_while_the_token_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "_LOOK_S", 0.01)

    async def test() -> None:
        defaults = Defaults.of(Config().doors, Config().limits)
        box = Box("unix:///none")
        service = Service(box, SharedMemory(None), defaults, "laxity", 256, "info", 10**6)
        port, tokens = free_port(), [new_token(), new_token()]
        tenants = [
            Tenant(name=name, tokens=(hash_of(token),))
            for name, token in zip(("stays", "goes"), tokens, strict=True)
        ]
        door = GrpcServer(service, Config(), Access(tenants), [f"tcp://127.0.0.1:{port}"])
        await door.open()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch
            stays, goes = (
                watch(
                    health_pb2.HealthCheckRequest(),
                    metadata=[("authorization", f"Bearer {token}")],
                )
                for token in tokens
            )
            for watching in (stays, goes):
                assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            door.reload(Access(tenants[:1]), None)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(goes.read(), 20)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert not stays.done()
            service.draining = True
            assert await stays.read() is grpc.aio.EOF
        await door.drain(0)
        box.close()

    asyncio.run(test())


class Watched:
    """A message whose end can be seen."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def test_a_call_that_is_refused_keeps_no_message_in_memory(
    box: OneModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.on_infer = lambda peer, header: peer.refuse(header, "infeasible")
    asked = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(8)])
    asked.inputs.add(name="image", datatype="FP32", shape=[1, 2])
    kept: list[weakref.ref[Watched]] = []
    parse = Reading._parsed

    def parsed(self: Reading, handler: Any, raw: bytes) -> Any:
        message = Watched(parse(self, handler, raw))
        kept.append(weakref.ref(message))
        return message

    monkeypatch.setattr(Reading, "_parsed", parsed)

    async def test() -> None:
        defaults = Defaults.of(Config().doors, Config().limits)
        service = Service(Box(box.url), SharedMemory(None), defaults, "laxity", 8, "info", 10**6)
        address = f"127.0.0.1:{free_port()}"
        door = GrpcServer(service, Config(), Access(), [f"tcp://{address}"])
        await door.open()
        async with grpc.aio.insecure_channel(address) as channel:
            stub = stubs.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await stub.ModelInfer(asked)
            (message,) = kept
            with suppress(asyncio.TimeoutError):  # the client may be told before the call ends
                await asyncio.wait_for(until(lambda: message() is None), 5)
            is_kept.append(message() is not None)
        await door.drain(0)
        service.box.close()

    is_kept: list[bool] = []
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()
    assert is_kept == [False]


def test_the_wait_for_a_thread_that_decodes_counts_against_the_deadline(box: OneModel) -> None:
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(4)])
    tensor = message.inputs.add(name="image", datatype="FP16", shape=[1, 2])
    put(tensor.parameters, {"encoding": "float16"})
    put(message.parameters, {"timeout": 60_000_000})
    context = a_call()

    async def test() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        service = Service(Box(box.url), SharedMemory(None), Defaults(1.0, {}), "", 8, "info", 10**6)
        door = InferenceService(service, Callers(Access()), Held(600_000))
        await service.box.model("digits")
        busy = asyncio.create_task(asyncio.to_thread(time.sleep, 0.3))
        await asyncio.sleep(0)
        await door.ModelInfer(message, context)
        await busy
        service.box.close()

    run(test)
    ((_, asked),) = box.messages("infer")
    assert asked["budget_ns"] < 59_800_000_000


def test_a_call_that_waits_for_the_scheduler_ends_at_its_deadline() -> None:
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(8)])
    message.inputs.add(name="image", datatype="FP32", shape=[1, 2])
    put(message.parameters, {"timeout": 20_000})

    async def test() -> None:
        service = Service(Box("unix:///none"), SharedMemory(None), Defaults(1.0, {}), "", 8, "", 1)
        door = InferenceService(service, Callers(Access()), Held(600_000))
        with pytest.raises(grpc.RpcError) as ended:
            await door.ModelInfer(message, a_call())
        assert ended.value.args[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "the deadline of 20 ms passed before the scheduler could be asked" in str(ended)
        service.box.close()

    run(test)


def test_the_wait_for_the_signature_counts_against_the_deadline(box: OneModel) -> None:
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(8)])
    message.inputs.add(name="image", datatype="FP32", shape=[1, 2])
    put(message.parameters, {"timeout": 60_000_000})
    box.after_s = 0.3

    async def test() -> None:
        service = Service(Box(box.url), SharedMemory(None), Defaults(1.0, {}), "", 8, "info", 10**6)
        await InferenceService(service, Callers(Access()), Held(600_000)).ModelInfer(
            message, a_call()
        )
        service.box.close()

    run(test)
    ((_, asked),) = box.messages("infer")
    assert asked["budget_ns"] < 59_800_000_000


def test_a_box_that_is_away_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.ingress.oip.box._ANSWER_S", 0.01)

    async def test() -> None:
        service = Service(Box("unix:///none"), SharedMemory(None), Defaults(1.0, {}), "", 8, "", 1)
        door = InferenceService(service, Callers(Access()), Held(1))
        assert not (await door.ServerReady(pb.ServerReadyRequest(), CONTEXT)).ready
        asked = pb.ModelReadyRequest(name="digits")
        assert not (await door.ModelReady(asked, a_call())).ready
        service.box.close()

    run(test)


def test_a_model_that_is_not_there_yet_is_not_ready(box: OneModel) -> None:
    async def test() -> None:
        service = Service(Box(box.url), SharedMemory(None), Defaults(1.0, {}), "", 8, "", 1)
        door = InferenceService(service, Callers(Access()), Held(1))

        async def is_ready(**asked: str) -> bool:
            answer = await door.ModelReady(pb.ModelReadyRequest(**asked), a_call())
            return bool(answer.ready)

        assert await is_ready(name="digits")
        assert not await is_ready(name="digits", version="int8")
        assert not await is_ready(name="added-later")
        service.box.close()

    run(test)


def test_a_request_that_the_box_cancels_is_no_failure_of_the_door(box: OneModel) -> None:
    box.on_infer = lambda peer, header: peer.refuse(header, "cancelled", "the box ends")
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(8)])
    message.inputs.add(name="image", datatype="FP32", shape=[1, 2])
    refused: list[tuple[Any, str]] = []

    async def abort(code: Any, words: str, _metadata: Any) -> None:
        refused.append((code, words))
        raise grpc.aio.AbortError

    context = a_call(abort=abort)

    async def test() -> None:
        defaults = Defaults(60_000.0, {})
        service = Service(Box(box.url), SharedMemory(None), defaults, "laxity", 8, "info", 10**6)
        door = InferenceService(service, Callers(Access()), Held(600_000))
        with pytest.raises(grpc.aio.AbortError):
            await door.ModelInfer(message, context)
        service.box.close()

    with structlog.testing.capture_logs() as logs:
        run(test)
    assert refused == [(grpc.StatusCode.CANCELLED, "the box ends")]
    assert logs == []
