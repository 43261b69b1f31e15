"""What messages the gRPC door lets into memory, and whose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from benchmarks.half_calls import HalfCalls
from scheduler.errors import ModelNotFound
from scheduler.ingress.grpc.callers import Callers, abort
from scheduler.ingress.grpc.messages import check_beside_tensors
from scheduler.ingress.grpc.reading import Places, Reading
from scheduler.ingress.held import Held
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.tenants import Access, Tenant, hash_of, new_token

TOKENS = {name: new_token() for name in ("slow", "other", "small")}
TENANTS = [
    Tenant(name=name, tokens=(hash_of(token),), queue_share=0.25 if name == "small" else 1.0)
    for name, token in TOKENS.items()
]
INFER = "/inference.GRPCInferenceService/ModelInfer"
MESSAGE_BYTES = 1_000_000
WINDOW_BYTES = 65_536
PATIENT_S = 60.0
BESIDE_BYTES = 300_000


class Slow(stubs.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun = 0

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.begun += 1
        await self.go_on.wait()
        return pb.ModelInferResponse(id=request.id)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            answer = pb.ModelInferResponse(id=request.id)
            yield pb.ModelStreamInferResponse(infer_response=answer)


@dataclass
class Door:
    port: int
    service: Slow
    held: Held
    streams: Held


@asynccontextmanager
async def door(
    places: int = 4,
    patience_s: float = PATIENT_S,
    held_bytes: int = 10**9,
    streams: int = 8,
    calls: int = 1000,
    compat: str = "laxity",
    service: Slow | None = None,
) -> AsyncIterator[Door]:
    held, open_streams = Held(held_bytes), Held(streams, "streams")
    open_calls = Held(calls, "calls", most_of_one=0.5)
    rooms = Places(places, patience_s, compat)
    reading = Reading(Callers(Access(TENANTS)), held, open_calls, open_streams, rooms, BESIDE_BYTES)
    options = [("grpc.http2.bdp_probe", 0)]
    server = grpc.aio.server(interceptors=(reading,), options=options)
    service = service or Slow()
    stubs.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Door(port, service, held, open_streams)
    finally:
        await server.stop(None)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def by(name: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {TOKENS[name]}")]


def message(size: int = 0) -> Any:
    return pb.ModelInferRequest(id="a", raw_input_contents=[bytes(size)] if size else [])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def half_calls(port: int, count: int, quiet_s: float = 0.5) -> HalfCalls:
    """Calls of one tenant that have sent all that they may."""
    calls = HalfCalls(port)
    for _ in range(count):
        calls.call(INFER, MESSAGE_BYTES, **dict(by("slow")))
    await asyncio.to_thread(calls.pump, quiet_s)
    return calls


def test_no_more_messages_come_in_than_there_are_places() -> None:
    async def test() -> None:
        async with door(places=4) as at:
            calls = await half_calls(at.port, 40)
            # A tenant has half of the places; the windows of all others are theirs in any case.
            assert 2 * MESSAGE_BYTES <= calls.sent <= 2 * MESSAGE_BYTES + 40 * WINDOW_BYTES
            calls.close()

    run(test)


def test_who_sends_slowly_keeps_no_other_tenant_out() -> None:
    async def test() -> None:
        async with door(places=4) as at, grpc.aio.insecure_channel(f"localhost:{at.port}") as c:
            calls = await half_calls(at.port, 40)
            at.service.go_on.set()
            answer = await stubs.GRPCInferenceServiceStub(c).ModelInfer(
                message(MESSAGE_BYTES), metadata=by("other")
            )
            assert answer.id == "a"
            assert not calls.ended
            calls.close()

    run(test)


def test_calls_of_one_tenant_leave_room_for_those_of_others() -> None:
    """Also calls that never send what they are about to ask, and wait for a place to be read in."""

    async def test() -> None:
        async with (
            door(places=2, calls=8) as at,
            grpc.aio.insecure_channel(f"localhost:{at.port}") as c,
        ):
            at.service.go_on.set()
            infer = stubs.GRPCInferenceServiceStub(c).ModelInfer
            calls = await half_calls(at.port, 4)
            with pytest.raises(grpc.aio.AioRpcError, match="requests hold 4 calls") as refused:
                await infer(message(), metadata=by("slow"))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await infer(message(), metadata=by("other"))).id == "a"
            calls.close()
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert (await infer(message(), metadata=by("slow"))).id == "a"
                    break

    run(test)


def test_a_message_has_its_time_and_leaves_its_place() -> None:
    async def test() -> None:
        async with door(places=2, patience_s=0.2) as at:
            calls = await half_calls(at.port, 5, quiet_s=1.0)
            while len(calls.ended) < 5:
                await asyncio.to_thread(calls.pump, 0.1)
            calls.close()

    run(test)


def test_what_is_read_counts_until_it_is_answered() -> None:
    async def test() -> None:
        most = 3 * MESSAGE_BYTES
        async with (
            door(held_bytes=most) as at,
            grpc.aio.insecure_channel(f"localhost:{at.port}") as c,
        ):
            infer = stubs.GRPCInferenceServiceStub(c).ModelInfer
            under_way = [infer(message(MESSAGE_BYTES), metadata=by("slow")) for _ in range(2)]
            await until(lambda: at.service.begun == 2)
            for name in ("slow", "other"):
                with pytest.raises(grpc.aio.AioRpcError, match="already") as refused:
                    await infer(message(MESSAGE_BYTES), metadata=by(name))
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            at.service.go_on.set()
            assert [(await call).id for call in under_way] == ["a", "a"]
            with pytest.raises(grpc.aio.AioRpcError, match="already"):
                await infer(message(MESSAGE_BYTES), metadata=by("small"))
            assert (await infer(message(), metadata=by("small"))).id == "a"
            await until(lambda: at.held.count == 0)

    run(test)


def test_an_answer_counts_and_its_call_until_the_client_has_read_it() -> None:
    """A client that reads nothing keeps its own tenant out, and nobody else."""

    class Long(Slow):
        async def ModelInfer(self, request: Any, context: Any) -> Any:
            self.begun += 1
            return pb.ModelInferResponse(id=request.id, raw_output_contents=[bytes(MESSAGE_BYTES)])

    async def test() -> None:
        async with (
            door(calls=8, service=Long()) as at,
            grpc.aio.insecure_channel(
                f"localhost:{at.port}", options=[("grpc.http2.bdp_probe", 0)]
            ) as c,
            grpc.aio.insecure_channel(f"localhost:{at.port}") as d,
        ):
            unread = [
                c.unary_stream(INFER)(message().SerializeToString(), metadata=by("slow"))
                for _ in range(4)
            ]
            await until(lambda: at.service.begun == 4)
            infer = stubs.GRPCInferenceServiceStub(d).ModelInfer
            with pytest.raises(grpc.aio.AioRpcError, match="requests hold 4 calls"):
                await infer(message(), metadata=by("slow"))
            assert (await infer(message(), metadata=by("other"))).id == "a"
            await until(lambda: 4 * MESSAGE_BYTES < at.held.count < 5 * MESSAGE_BYTES)
            for call in unread:
                assert len(await call.read()) > MESSAGE_BYTES
            await until(lambda: at.held.count == 0)
            await infer(message(), metadata=by("slow"))

    run(test)


@pytest.mark.parametrize(
    ("compat", "code", "words"),
    [
        ("laxity", grpc.StatusCode.RESOURCE_EXHAUSTED, "requests hold 1000 bytes already, or "),
        ("triton", grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
    ],
)
def test_what_the_door_refuses_is_said_as_all_else(compat: str, code: Any, words: str) -> None:
    async def test() -> None:
        async with (
            door(held_bytes=1000, compat=compat) as at,
            grpc.aio.insecure_channel(f"localhost:{at.port}") as c,
        ):
            stub = stubs.GRPCInferenceServiceStub(c)
            stream = stub.ModelStreamInfer(metadata=by("slow"))
            await stream.write(message(2000))
            for asked in (stub.ModelInfer(message(2000), metadata=by("slow")), stream.read()):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await asked
                assert refused.value.code() is code
                assert words in (refused.value.details() or "")
                assert dict(refused.value.trailing_metadata()) == {
                    "laxity-code": "overloaded",
                    "laxity-detail": '{"limit": "bytes"}',
                    "retry-after": "1",
                }

    run(test)


@pytest.mark.parametrize("name", ["x" * 100_000, "ü" * 100_000, "日" * 900, " " * 3000])
def test_a_long_error_is_told_in_short(name: str) -> None:
    """gRPC has its errors in trailers, and drops those that are too long for all they say."""

    class Refusing(Slow):
        async def ModelInfer(self, request: Any, context: Any) -> Any:
            await abort(context, ModelNotFound(f"model {name!r}", {"name": name}), "laxity")

    async def test() -> None:
        async with (
            door(service=Refusing()) as at,
            grpc.aio.insecure_channel(f"localhost:{at.port}") as c,
        ):
            infer = stubs.GRPCInferenceServiceStub(c).ModelInfer
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await infer(message(), metadata=by("slow"))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert f"model {name!r}".startswith(refused.value.details().rstrip("…"))
            assert len(refused.value.details()) > 200

    run(test)


def test_streams_are_counted_and_what_they_read_is_let_go() -> None:
    async def test() -> None:
        async with door(streams=2) as at, grpc.aio.insecure_channel(f"localhost:{at.port}") as c:
            open_streams = [
                stubs.GRPCInferenceServiceStub(c).ModelStreamInfer(metadata=by("slow"))
                for _ in range(2)
            ]
            for stream in open_streams:
                await stream.write(message(1000))
                assert (await stream.read()).infer_response.id == "a"
            assert (at.streams.count, at.held.count) == (2, 0)
            third = stubs.GRPCInferenceServiceStub(c).ModelStreamInfer(metadata=by("other"))
            with pytest.raises(grpc.aio.AioRpcError, match="streams"):
                await third.read()
            for stream in open_streams:
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
            await until(lambda: at.streams.count == 0)

    run(test)


def test_what_is_no_message_is_said_so() -> None:
    async def test() -> None:
        async with door() as at, grpc.aio.insecure_channel(f"localhost:{at.port}") as c:
            infer = c.unary_unary(INFER)
            with pytest.raises(grpc.aio.AioRpcError, match="not of the type") as refused:
                await infer(b"\xff" * 9, metadata=by("slow"))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            empty = c.stream_unary(INFER)
            with pytest.raises(grpc.aio.AioRpcError, match="no message"):
                await empty(iter(()), metadata=by("slow"))
            with pytest.raises(grpc.aio.AioRpcError, match="token"):
                await infer(b"", metadata=())
            assert at.held.count == 0

    run(test)


def typed(**contents: Any) -> Any:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x")
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return pb.ModelInferRequest(id="a", inputs=[tensor])


EXPENSIVE = {
    "numbers": typed(int_contents=[1] * (BESIDE_BYTES + 1)),
    "texts": typed(bytes_contents=[b""] * BESIDE_BYTES),
    "tensors": pb.ModelInferRequest(inputs=[typed().inputs[0]] * BESIDE_BYTES),
    "raws": pb.ModelInferRequest(raw_input_contents=[b""] * BESIDE_BYTES),
}


@pytest.mark.parametrize("what", EXPENSIVE)
def test_what_takes_more_memory_than_on_the_wire_is_refused_unread(what: str) -> None:
    async def test() -> None:
        async with door() as at, grpc.aio.insecure_channel(f"localhost:{at.port}") as c:
            stub = stubs.GRPCInferenceServiceStub(c)
            at.service.go_on.set()
            with pytest.raises(grpc.aio.AioRpcError, match="the message has more than") as refused:
                await stub.ModelInfer(EXPENSIVE[what], metadata=by("slow"))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert dict(refused.value.trailing_metadata())["laxity-code"] == "too_large"
            stream = stub.ModelStreamInfer(metadata=by("slow"))
            await stream.write(EXPENSIVE[what])
            with pytest.raises(grpc.aio.AioRpcError, match="the message has more than"):
                await stream.read()
            while at.held.count:  # the answer may be there before the call has ended here
                await asyncio.sleep(0.001)
            assert at.service.begun == 0
            for fine in (message(MESSAGE_BYTES), typed(int_contents=[1] * (BESIDE_BYTES - 100))):
                assert (await stub.ModelInfer(fine, metadata=by("slow"))).id == "a"

    run(test)


@given(st.binary(max_size=200), st.integers(0, 300))
@example(b"\xff" * 20, 0)
@example(b"\x3a" + b"\xff" * 9 + b"\x7f", 0)
@example(b"\x22\x00" * 10, 20)
def test_any_bytes_are_either_little_beside_tensors_or_too_large(data: bytes, most: int) -> None:
    """What is let through has no more than that as objects, whatever the bytes are."""
    raw = message(100_000).SerializeToString() + data
    try:
        check_beside_tensors(raw, most)
        read = pb.ModelInferRequest.FromString(raw)
    except (TooLarge, DecodeError):
        return
    read.ClearField("raw_input_contents")
    assert read.ByteSize() <= 4 * most  # an empty entry of a map is written with key and value
