"""A server of the Open Inference Protocol that is not laxity's, with every fault at command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from benchmarks.ports import free_port

Behaviour = Callable[[Any, Any], Awaitable[Any]]


def doubled(request: Any) -> Any:
    """`y` is twice `x`, as float32."""
    x = np.frombuffer(request.raw_input_contents[0], np.float32)
    response = pb.ModelInferResponse(model_name=request.model_name)
    shape = list(request.inputs[0].shape)
    response.outputs.add(name="y", datatype="FP32", shape=shape)
    response.raw_output_contents.append((2 * x).tobytes())
    return response


async def good(request: Any, context: Any) -> Any:
    return doubled(request)


class FarServer(stubs.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """One model, `double`, which takes `x` and gives `y`.

    Attributes:
        behaviour: What an inference does; replaced by tests.
        alive: Whether it answers at all.
        late: How many of the probes that come next get no answer in time.
        asked: The inferences that came in.
        shape: Of both tensors, as the metadata has them.
        names: What the model is called.
    """

    def __init__(self) -> None:
        self.behaviour: Behaviour = good
        self.alive = asyncio.Event()
        self.alive.set()
        self.late = 0
        self.asked: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.cancelled = 0
        self.shape = [-1, 4]
        self.versions = ["1"]
        self.names = {"double"}
        self.port = free_port()
        self._server: Any = None

    async def start(self, credentials: Any = None, most_bytes: int = -1) -> FarServer:
        options = [("grpc.max_receive_message_length", most_bytes)]
        self._server = grpc.aio.server(options=options)
        stubs.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        address = f"127.0.0.1:{self.port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    async def ServerLive(self, request: Any, context: Any) -> Any:
        await self.alive.wait()
        if self.late:
            self.late -= 1
            await asyncio.sleep(60)
        return pb.ServerLiveResponse(live=True)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name not in self.names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        said = pb.ModelMetadataResponse(name=request.name, versions=self.versions, platform="test")
        said.inputs.add(name="x", datatype="FP32", shape=self.shape)
        said.outputs.add(name="y", datatype="FP32", shape=self.shape)
        return said

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            await self.alive.wait()
            return await self.behaviour(request, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def far_server(
    port: int = 0, credentials: Any = None, most_bytes: int = -1
) -> AsyncIterator[FarServer]:
    """One that ends whatever happens."""
    far = FarServer()
    far.port = port or far.port
    await far.start(credentials, most_bytes)
    try:
        yield far
    finally:
        await far.stop()
