"""Between a box and a real server: hands calls on as they are, and remembers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import orjson
from aiohttp import web
from tritonclient.grpc import service_pb2 as pb

from scheduler.daemon.cloud.http_messages import HEADER_LENGTH

INFER = "/inference.GRPCInferenceService/ModelInfer"
REFUSALS = {"RESOURCE_EXHAUSTED", "UNAVAILABLE", "429", "503"}


@dataclass
class Call:
    """An inference that went through.

    Attributes:
        model: Of which model.
        items: How many items its batch had.
        headers: Its headers or metadata.
        timeout_us: What its message said is left of its deadline.
        left_s: What its header, or gRPC itself, said.
        status: How it ended: a status of gRPC or HTTP, or `gone` where the box gave it up.
    """

    model: str
    items: int
    headers: dict[str, str]
    timeout_us: int
    left_s: float
    status: str = ""


@dataclass
class Tap:
    """What went through.

    Attributes:
        url: Where a box finds it.
        calls: The inferences.
        others: The headers of all other calls.
    """

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    others: list[dict[str, str]] = field(default_factory=list)

    def of(self, model: str) -> list[Call]:
        return [call for call in self.calls if call.model == model]


@asynccontextmanager
async def tapped(url: str) -> AsyncIterator[Tap]:
    """A tap before a server of `grpc://` or `http://`."""
    scheme, _, address = url.partition("://")
    async with (_grpc_tap if scheme == "grpc" else _http_tap)(address) as tap:
        yield tap


class _Generic(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, tap: Tap, channel: Any) -> None:
        self._tap, self._channel = tap, channel

    def service(self, details: Any) -> Any:
        onward = self._channel.unary_unary(details.method)

        async def hand_on(message: bytes, context: Any) -> bytes:
            metadata = [(k, v) for k, v in details.invocation_metadata if k != "user-agent"]
            call = self._note(details.method, dict(metadata), message, context.time_remaining())
            try:
                answer = await onward(message, timeout=context.time_remaining(), metadata=metadata)
                call.status = "OK"
                return bytes(answer)
            except asyncio.CancelledError:
                call.status = "gone"
                raise
            except grpc.aio.AioRpcError as error:
                call.status, failed = error.code().name, error
            trailing = tuple(failed.trailing_metadata() or ())
            await context.abort(failed.code(), failed.details() or "", trailing)
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(hand_on)

    def _note(self, method: str, headers: dict[str, str], message: bytes, left_s: float) -> Call:
        if method != INFER:
            self._tap.others.append(headers)
            return Call("", 0, headers, 0, left_s)
        said = pb.ModelInferRequest.FromString(message)
        timeout_us = said.parameters["timeout"].int64_param
        call = Call(said.model_name, said.inputs[0].shape[0], headers, timeout_us, left_s)
        self._tap.calls.append(call)
        return call


@asynccontextmanager
async def _grpc_tap(address: str) -> AsyncIterator[Tap]:
    tap, server = Tap(), grpc.aio.server()
    async with grpc.aio.insecure_channel(address) as channel:
        server.add_generic_rpc_handlers((_Generic(tap, channel),))
        tap.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield tap
        finally:
            await server.stop(None)


@asynccontextmanager
async def _http_tap(address: str) -> AsyncIterator[Tap]:
    tap = Tap()
    async with aiohttp.ClientSession(skip_auto_headers=["Accept-Encoding"]) as session:

        async def hand_on(request: web.Request) -> web.Response:
            body = await request.read()
            headers = {name.lower(): value for name, value in request.headers.items()}
            call = _noted(tap, request.path, headers, body)
            del headers["host"]
            url = f"http://{address}{request.raw_path}"
            try:
                async with session.request(
                    request.method, url, data=body or None, headers=headers
                ) as answer:
                    raw = await answer.read()
            except asyncio.CancelledError:
                call.status = "gone"
                raise
            call.status = str(answer.status)
            kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            return web.Response(body=raw, status=answer.status, headers=kept)

        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", hand_on)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tap.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield tap
        finally:
            await runner.cleanup()


_KEPT = (HEADER_LENGTH, "Content-Type", "Retry-After")


def _noted(tap: Tap, path: str, headers: dict[str, str], body: bytes) -> Call:
    if not path.endswith("/infer"):
        tap.others.append(headers)
        return Call("", 0, headers, 0, 0.0)
    said = orjson.loads(body[: int(headers.get(HEADER_LENGTH.lower(), len(body)))])
    left_s = float(headers["x-request-timeout-ms"]) / 1e3
    model, items = path.split("/")[3], said["inputs"][0]["shape"][0]
    call = Call(model, items, headers, said["parameters"]["timeout"], left_s)
    tap.calls.append(call)
    return call
