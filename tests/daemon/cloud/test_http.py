"""The protocol over HTTP, against a server that is not laxity's and can be told any fault."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import secrets
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import uvloop
from aiohttp import ClientSession, TCPConnector, web
from aiohttp.abc import AbstractResolver

from scheduler.core.outcomes import Outcome
from scheduler.daemon.cloud.endpoint import (
    Fault,
    Inference,
    InputTensor,
    RemoteError,
    apart,
    said_by_laxity,
)
from scheduler.daemon.cloud.http_endpoint import HttpEndpoint
from scheduler.daemon.cloud.http_messages import HEADER_LENGTH, inferred
from scheduler.wire import encode
from tests.daemon.cloud.boxes import Box, box_of, numbers

LENGTH = "Inference-Header-Content-Length"
Answer = Callable[[web.Request, dict[str, Any], bytes], Awaitable[web.StreamResponse]]


async def good(request: web.Request, said: dict[str, Any], tensors: bytes) -> web.StreamResponse:
    x = 2 * np.frombuffer(tensors, np.float32)
    shape = said["inputs"][0]["shape"]
    output = {"name": "y", "datatype": "FP32", "shape": shape}
    output["parameters"] = {"binary_data_size": x.nbytes}
    head = orjson.dumps({"model_name": "double", "outputs": [output]})
    return web.Response(body=head + x.tobytes(), headers={LENGTH: str(len(head))})


class HttpServer:
    """One model, `double`."""

    def __init__(self, shape: list[int] | None = None) -> None:
        self._tensor = {"datatype": "FP32", "shape": shape or [-1, 4]}
        self.answer: Answer = good
        self.live = 200
        self.probed = 0
        self.asked: list[tuple[web.Request, dict[str, Any]]] = []
        self.said: Any = {"name": "test", "extensions": ["binary_tensor_data"]}

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        app = web.Application()
        app.router.add_get("/base/v2", self._describe_itself)
        app.router.add_get("/base/v2/health/live", self._live)
        app.router.add_get("/base/v2/models/double", self._describe)
        app.router.add_post("/base/v2/models/double/infer", self._infer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server = "http://127.0.0.1" if tls is None else "https://localhost"
        return f"{server}:{self._runner.addresses[0][1]}/base"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        self.probed += 1
        return web.Response(status=self.live)

    async def _describe_itself(self, request: web.Request) -> web.Response:
        return web.json_response(self.said, status=200 if self.said is not None else 404)

    async def _describe(self, request: web.Request) -> web.Response:
        tensors = {
            side: [{"name": n, **self._tensor}] for side, n in (("inputs", "x"), ("outputs", "y"))
        }
        return web.json_response({"name": "double", "versions": ["1"], **tensors})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        size = int(request.headers.get(LENGTH, len(body)))
        said = orjson.loads(body[:size])
        self.asked.append((request, said))
        return await self.answer(request, said, body[size:])


def with_http(
    folder: Path,
    test: Callable[[Box, HttpServer], Awaitable[None]],
    far: HttpServer | None = None,
    **settings: Any,
) -> None:
    far = far or HttpServer()

    async def run() -> None:
        url = await far.start()
        try:
            async with box_of(url, folder, **settings) as box:
                await box.until(lambda: box.is_up)
                await test(box, far)
        finally:
            await far.stop()

    asyncio.run(run())


def test_batches_go_as_binary_tensors_with_what_is_left_of_the_deadline(tmp_path: Path):
    async def test(box: Box, far: HttpServer) -> None:
        answers = await asyncio.gather(*[box.ask(float(v), 20_000) for v in range(30)])
        assert [numbers(answer)[0] for answer in answers] == [2.0 * v for v in range(30)]
        request, said = far.asked[-1]
        left_ms = float(request.headers["x-request-timeout-ms"])
        assert 0 < left_ms < 20_000
        assert said["parameters"]["timeout"] == pytest.approx(left_ms * 1e3, rel=0.01)
        assert request.headers["x-project"] == "42"

    with_http(tmp_path, test, headers={"X-Project": "42"})


async def plain(request: web.Request, said: dict[str, Any], tensors: bytes) -> web.StreamResponse:
    assert not tensors
    (given,) = said["inputs"]
    data = [2 * value for value in given["data"]]
    output = {"name": "y", "datatype": "FP32", "shape": given["shape"], "data": data}
    return web.json_response({"model_name": "double", "outputs": [output]})


@pytest.mark.parametrize(
    "said", [{"name": "test", "extensions": []}, {"name": "test", "extensions": 3}, {}, None]
)
def test_a_server_that_lists_no_binary_tensors_gets_and_gives_json(tmp_path: Path, said: Any):
    far = HttpServer()
    far.said, far.answer = said, plain

    async def test(box: Box, far: HttpServer) -> None:
        answers = await asyncio.gather(*[box.ask(float(v), 20_000) for v in range(30)])
        assert [numbers(answer)[0] for answer in answers] == [2.0 * v for v in range(30)]
        assert max(said["inputs"][0]["shape"][0] for _, said in far.asked) > 1, "batches grow"

    with_http(tmp_path, test, far)


def test_how_tensors_go_can_be_said(tmp_path: Path):
    far = HttpServer()
    far.said = None

    async def test(box: Box, far: HttpServer) -> None:
        assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4
        assert LENGTH in far.asked[-1][0].headers

    with_http(tmp_path, test, far, encoding="binary")


def test_a_value_that_json_can_not_say_fails_alone(tmp_path: Path):
    far = HttpServer()
    far.said, far.answer = {}, plain

    async def test(box: Box, far: HttpServer) -> None:
        values = [1.0, float("nan"), 3.0]
        good, bad, fine = await asyncio.gather(*[box.ask(value, 20_000) for value in values])
        assert (numbers(good)[0], numbers(fine)[0]) == (2.0, 6.0)
        assert bad.outcome is Outcome.FAILED
        assert "JSON" in bad.reason

    with_http(tmp_path, test, far)


def test_what_json_can_not_say_never_goes_and_costs_nothing(tmp_path: Path):
    far = HttpServer()
    far.said, far.answer = {}, plain

    async def test(box: Box, far: HttpServer) -> None:
        for _ in range(3):
            assert (await box.ask(float("nan"), 20_000)).outcome is Outcome.FAILED
        assert (far.asked, box.link.describe()["spending"]["spent"]) == ([], 0)
        assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4, "the budget is there for others"

    money = {"cost_per_request": 1.0, "budget_per_day": 2.0, "expected_ms": 5.0}
    with_http(tmp_path, test, far, **money)


def status(code: int, **headers: str) -> Answer:
    async def answer(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
        return web.json_response({"error": "no"}, status=code, headers=headers)

    return answer


async def broken_off(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize("is_json", [True, False])
def test_a_key_that_the_server_repeats_is_not_told_further(tmp_path: Path, is_json: bool):
    async def refuse(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
        told = f"{'!' * 275} incorrect API key {request.headers['x-api-key']} of project 42"
        if is_json:
            return web.json_response({"error": told[265:]}, status=400)
        return web.Response(text=told, status=400)

    async def test(box: Box, far: HttpServer) -> None:
        far.answer = refuse
        answered = await box.ask(deadline_ms=20_000)
        assert answered.outcome is Outcome.FAILED
        assert "s3cret" not in answered.reason
        assert not is_json or "incorrect API key *** of project 42" in answered.reason
        assert "s3cret" not in str(box.driver.status())

    with_http(tmp_path, test, headers={"X-API-Key": "s3cret-of-many-letters", "X-Project": "42"})


@pytest.mark.parametrize(
    "fault",
    [
        status(429),
        status(429, **{"Retry-After": "9" * 400}),
        *(status(code) for code in (503, 500, 502, 404, 400)),
        broken_off,
    ],
    ids=["429", "429, for ever", "503", "500", "502", "404", "400", "broken off"],
)
def test_after_a_fault_that_passes_the_request_is_served(tmp_path: Path, fault: Answer):
    async def test(box: Box, far: HttpServer) -> None:
        faults = [fault]

        async def once(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
            return await (faults.pop() if faults else good)(request, said, tensors)

        far.answer = once
        assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4

    with_http(tmp_path, test)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"outputs": 3}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, null]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP33", "shape": [1, 4], "data": [1, 2, 3, 4]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": "x", '
        b'"parameters": {"binary_data_size": -1}}]}',
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure(tmp_path: Path, body: bytes):
    async def test(box: Box, far: HttpServer) -> None:
        async def answer(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
            return web.Response(body=body)

        far.answer = answer
        answered = await box.ask(deadline_ms=20_000)
        assert answered.outcome is Outcome.FAILED
        assert "answers" in answered.reason

    with_http(tmp_path, test)


def test_a_redirect_is_not_followed_with_the_token(tmp_path: Path):
    async def test(box: Box, far: HttpServer) -> None:
        far.answer = status(307, Location="http://127.0.0.1:9/elsewhere")
        answered = await box.ask(deadline_ms=20_000)
        assert answered.outcome is Outcome.FAILED
        assert "redirects to http://127.0.0.1:9/elsewhere" in answered.reason

    with_http(tmp_path, test)


def test_what_a_server_says_can_be_told_to_callers_whatever_its_bytes_are(tmp_path: Path):
    head = b"HTTP/1.1 307 There\r\nLocation: http://h\xf6st\r\nContent-Length: 0\r\n\r\n"

    async def raw(request: web.Request, said: Any, tensors: bytes) -> Any:
        assert request.transport is not None
        request.transport.write(head)
        return await good(request, said, tensors)

    async def test(box: Box, far: HttpServer) -> None:
        far.answer = raw
        answered = await box.ask(deadline_ms=20_000)
        assert answered.outcome is Outcome.FAILED
        assert "redirects to http://h\N{REPLACEMENT CHARACTER}st," in answered.reason

    with_http(tmp_path, test)


def test_a_server_that_limits_how_often_it_is_asked_is_there(tmp_path: Path):
    far, ended = HttpServer(), asyncio.Event()

    async def test(box: Box, far: HttpServer) -> None:
        async def slow(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
            await ended.wait()
            return await good(request, said, tensors)

        asked, far.answer = len(far.asked), slow
        _, answer = box.post(2.0, 20_000)
        await box.until(lambda: len(far.asked) > asked)
        far.live, probed = 429, far.probed
        await box.until(lambda: far.probed >= probed + 4)
        ended.set()
        assert numbers(await answer) == [4.0] * 4
        assert len(far.asked) == asked + 1, "nothing was taken back"
        far.live = 503
        await box.until(lambda: box.breaker == "open")

    with_http(tmp_path, test, far, probe_s=0.05)


def test_a_connection_that_the_server_closes_as_it_is_used_again_opens_no_breaker(tmp_path: Path):
    async def test(box: Box, far: HttpServer) -> None:
        closed: list[int] = []

        async def close_once(request: web.Request, said: Any, tensors: bytes) -> Any:
            if not closed:
                closed.append(1)
                assert request.transport is not None
                request.transport.abort()
            return await good(request, said, tensors)

        far.answer = close_once
        assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4
        assert (closed, box.link.describe()["breaker"]["trips"]) == ([1], 0)

    with_http(tmp_path, test)


def test_no_packed_answer_is_larger_than_may_be():
    async def packed(request: web.Request) -> web.Response:
        body = gzip.compress(bytes(1_000_000))
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/v2/health/live", packed)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        endpoint = HttpEndpoint(ClientSession, url, {}, 10_000)
        with pytest.raises(RemoteError, match="more than 10000 bytes"):
            await endpoint.live(20.0)
        await endpoint.close()
        await runner.cleanup()

    asyncio.run(ask())


class NoNames(AbstractResolver):
    """Never finds anything."""

    async def resolve(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def test_a_call_that_is_still_looking_for_the_server_is_not_cancelled_by_a_new_connection():
    async def ask() -> None:
        endpoint = HttpEndpoint(
            lambda: ClientSession(connector=TCPConnector(resolver=NoNames())), "http://far", {}, 100
        )
        call = asyncio.create_task(endpoint.live(20.0))
        await asyncio.sleep(0.05)
        endpoint.reconnect()
        with pytest.raises(RemoteError) as error:
            await call
        assert error.value.fault is Fault.UNREACHABLE
        await endpoint.close()

    asyncio.run(ask())


def test_a_call_given_up_at_the_moment_it_times_out_leaves_nothing_in_the_log():
    """As a batch is at its deadline. aiohttp then turns the cancellation into its timeout."""

    async def times_out() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RemoteError(Fault.SILENT, "no answer within 0.050 s") from None

    async def run() -> list[dict[str, Any]]:
        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        call = asyncio.create_task(apart(times_out()))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        del call
        await asyncio.sleep(0.01)
        gc.collect()
        return logged

    assert asyncio.run(run()) == []


def test_a_call_that_failed_keeps_nothing_in_memory():
    async def fails(tensors: Any) -> None:
        raise RemoteError(Fault.INVALID, f"it takes no {tensors.dtype}")

    async def run() -> bool:
        tensors = np.ones(4, np.float32)
        kept = weakref.ref(tensors)
        try:
            await apart(fails(tensors))
        except RemoteError:
            del tensors
        return kept() is not None

    gc.disable()
    try:
        assert not asyncio.run(run())
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["silent", "gone", "breaking off"])
def test_a_call_without_an_answer_keeps_nothing_in_memory(how: str):
    """Else a server that is silent for hours fills the memory with what was sent there."""
    sent = secrets.token_bytes(16)
    held: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.readuntil(sent)
        if how == "breaking off":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nabc")
            writer.close()

    async def ask(endpoint: HttpEndpoint) -> weakref.ref[memoryview]:
        tensor = memoryview(sent)
        x = InputTensor("x", "FP32", (1, 4), [tensor])
        with contextlib.suppress(RemoteError):
            await endpoint.infer(Inference("double", "", [x], ["y"], 0.05, 0.05))
        return weakref.ref(tensor)

    def holders() -> list[Any]:
        """What refers to the body of the request."""
        found = ((each, what) for each in gc.get_objects() for what in gc.get_referents(each))
        return [each for each, what in found if type(what) is bytes and sent in what[1:]]

    async def run() -> bool:
        server = await asyncio.start_server(take, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if how == "gone":
            server.close()
        endpoint = HttpEndpoint(ClientSession, f"http://127.0.0.1:{port}", {}, 9999, binary=True)
        kept = await ask(endpoint)
        for _ in range(100):  # the connection ends in a later turn of the loop
            if not (is_kept := kept() is not None or holders() != []):
                break
            await asyncio.sleep(0.01)
        assert bool(held) is (how != "gone")
        await endpoint.close()
        for writer in held:
            writer.close()
        server.close()
        return is_kept

    gc.disable()
    try:
        assert not uvloop.run(run())
    finally:
        gc.enable()


def test_a_server_that_is_not_there_is_told_in_plain_words():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        port = free.getsockname()[1]

        async def ask() -> str:
            endpoint = HttpEndpoint(ClientSession, f"http://127.0.0.1:{port}", {}, 100)
            with pytest.raises(RemoteError) as error:
                await endpoint.live(20.0)
            await endpoint.close()
            return str(error.value)

        assert asyncio.run(ask()) == f"can't connect to 127.0.0.1:{port}: Connection refused"


def test_a_server_that_does_not_speak_http_is_told_in_plain_words():
    """For example the native door of a box."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x00\x00\x00\x85\xa1t\xa5error")
        writer.close()

    async def ask() -> str:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = HttpEndpoint(ClientSession, f"http://127.0.0.1:{port}", {}, 100)
            with pytest.raises(RemoteError) as error:
                await endpoint.live(20.0)
            await endpoint.close()
        return str(error.value)

    assert asyncio.run(ask()) == "what answers there does not speak HTTP"


def test_a_length_of_thousands_of_digits_is_no_length():
    with pytest.raises(RemoteError, match="not outputs with data"):
        inferred({HEADER_LENGTH: "9" * 5_000}, b"{}", 0)


@pytest.mark.parametrize("us", [1e300, -1e300, 2**63])
@pytest.mark.parametrize("name", ["total_us", "restore_us"])
def test_no_time_that_a_server_states_keeps_an_answer_from_its_caller(
    tmp_path: Path, name: str, us: float
):
    async def lie(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
        output = {"name": "y", "datatype": "FP32", "shape": said["inputs"][0]["shape"]}
        output["data"] = (2 * np.frombuffer(tensors, np.float32)).tolist()
        parameters = {"total_us": 10, name: us}
        return web.json_response({"outputs": [output], "parameters": parameters})

    async def test(box: Box, far: HttpServer) -> None:
        far.answer = lie
        answer = await box.ask(2.0, 20_000)
        assert numbers(answer) == [4.0] * 4
        assert encode(answer.header())
        assert all(0 <= ns <= 20_000_000_000 for ns in answer.timing_ns)

    with_http(tmp_path, test)


def test_no_time_at_all_is_no_time():
    assert said_by_laxity({"total_us": float("inf")})["there_ns"] is None
