"""The methods of `inference.GRPCInferenceService`, and their errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import structlog
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as config_pb
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from scheduler.core.outcomes import Outcome
from scheduler.errors import SHUTTING_DOWN, InvalidInput, ModelNotFound, Unavailable
from scheduler.ingress.grpc.callers import Callers, abort, headers_of
from scheduler.ingress.grpc.messages import answer, parsed, put, values_of
from scheduler.ingress.held import Held
from scheduler.ingress.oip.admin import Admin
from scheduler.ingress.oip.inference import Inference, Inferred
from scheduler.ingress.oip.metadata import (
    model_config,
    model_metadata,
    repository_index,
    server_metadata,
)
from scheduler.ingress.oip.outcomes import Refusal, is_unexpected, refusal_of
from scheduler.ingress.oip.pace import Pace
from scheduler.ingress.oip.request import InferRequest, ReadRegion
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import NO_CUDA
from scheduler.tenants import Tenant

_STREAM_REQUESTS = 64
"""How many requests of one stream may be in flight at once."""

log = structlog.get_logger()

Method = Callable[[Any, Any, Any], Awaitable[Any]]


def _said(method: Method) -> Method:
    """Wraps a method, so that an error ends the call with the status that stands for it."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except asyncio.CancelledError:
            raise  # the client is gone, or its deadline has passed
        except Exception as error:
            # gRPC keeps what `abort` raises, and so this frame, until garbage is collected.
            del request
            await self.abort(context, error)

    return call


class InferenceService(stubs.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers every call of the gRPC door.

    Args:
        service: The settings and state that the doors share.
        callers: Identifies callers.
        held: Counts the memory that requests take beside their messages.
    """

    def __init__(self, service: Service, callers: Callers, held: Held) -> None:
        """Starts with no calls."""
        self._held = held
        self._service = service
        self._box = service.box
        self._callers = callers
        self._admin = Admin(service)
        self._pace = Pace()

    async def abort(self, context: Any, error: BaseException) -> None:
        """Ends a call with an error."""
        _log_unexpected(error)
        _let_go(error)
        await abort(context, error, self._service.compat)

    # -- health and metadata

    @_said
    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Whether this process answers."""
        return pb.ServerLiveResponse(live=True)

    @_said
    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Whether a target is up, and new requests are admitted."""
        return pb.ServerReadyResponse(ready=await self._service.is_ready())

    @_said
    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Whether a target can run a model now; not if there is none, as callers wait for one."""
        tenant, ready = self._callers.tenant(context), False
        with suppress(ModelNotFound, Unavailable):
            ready = await self._service.is_model_ready(request.name, request.version, tenant)
        return pb.ModelReadyResponse(ready=ready)

    @_said
    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Name, version and extensions."""
        return pb.ServerMetadataResponse(**server_metadata())

    @_said
    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Versions and tensors of a model."""
        tenant = self._callers.tenant(context)
        info = await self._box.model(request.name, request.version, tenant)
        return json_format.ParseDict(model_metadata(info), pb.ModelMetadataResponse())

    @_said
    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """A model in the form of Triton's model configuration."""
        tenant = self._callers.tenant(context)
        info = await self._box.model(request.name, request.version, tenant)
        config = json_format.ParseDict(model_config(info), config_pb.ModelConfig())
        return pb.ModelConfigResponse(config=config)

    @_said
    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Statistics of one model or all."""
        tenant = self._callers.tenant(context)
        counted = await self._service.statistics(request.name, request.version, tenant)
        return json_format.ParseDict(
            {"model_stats": counted}, pb.ModelStatisticsResponse(), ignore_unknown_fields=True
        )

    # -- inference

    @_said
    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """One inference."""
        response, outcome = await self._infer(request, context, ends_call=True)
        if outcome is Outcome.LATE:
            context.set_trailing_metadata((("laxity-outcome", outcome.value),))
        return response

    async def ModelStreamInfer(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        """Inferences, many in flight at once, answered in the order of their arrival.

        An error concerns only its own request, whose id the answer carries.
        """
        asked: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        under_way: set[asyncio.Task[Any]] = set()
        free = asyncio.Semaphore(_STREAM_REQUESTS)

        async def read() -> None:
            try:
                async for request in request_iterator:
                    await free.acquire()
                    task = asyncio.create_task(self._stream_one(request, context))
                    under_way.add(task)
                    asked.put_nowait(task)
            finally:
                asked.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (task := await asked.get()) is not None:
                response = await task
                under_way.discard(task)
                free.release()
                yield response
            await reading
        finally:
            for task in (reading, *under_way):
                task.cancel()

    async def _stream_one(self, request: Any, context: Any) -> Any:
        try:
            response, _ = await self._infer(request, context, ends_call=False)
            return pb.ModelStreamInferResponse(infer_response=response)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log_unexpected(error)
            _let_go(error)
            return _stream_error(request, refusal_of(error, self._service.compat))

    async def _infer(self, message: Any, context: Any, ends_call: bool) -> tuple[Any, Outcome]:
        tenant, held = self._callers.tenant(context), 0

        def hold(count: int) -> None:
            nonlocal held
            self._held.hold(tenant, count)
            held += count

        try:
            return await self._inferred(message, context, ends_call, tenant, hold)
        finally:
            self._held.release(tenant, held)

    async def _parsed(self, message: Any, tenant: Tenant, reader: ReadRegion) -> InferRequest:
        """Parses a message; long ones with typed values, which are slow to convert, are paced."""
        self._pace.note(tenant)
        typed_bytes = 0 if message.raw_input_contents else message.ByteSize()
        if not self._pace.holds(tenant, typed_bytes):
            return parsed(message, reader)
        async with self._pace.turn(tenant) as waited_ns:
            return replace(parsed(message, reader), waited_ns=waited_ns)

    async def _inferred(
        self,
        message: Any,
        context: Any,
        ends_call: bool,
        tenant: Tenant,
        hold: Callable[[int], None],
    ) -> tuple[Any, Outcome]:
        service = self._service
        grpc_s = context.time_remaining() if ends_call else None
        if service.draining:
            raise Unavailable(SHUTTING_DOWN)
        tenant.check_model(message.model_name)
        named = message.model_name, message.model_version
        headers = headers_of(context)
        parameters = partial(values_of, message.parameters)
        info, waited_ns = await service.signature(*named, parameters, headers, tenant, grpc_s)
        reader = service.memory.reader(tenant, service.body_bytes, hold)
        request = await self._parsed(message, tenant, reader)
        if waited_ns:
            request = replace(request, waited_ns=request.waited_ns + waited_ns)
        if request.encoded:
            request = await service.restored(info, request, tenant, hold)
        terms = service.terms(request, headers, info.name, tenant, grpc_s)
        future: asyncio.Future[Inferred] = asyncio.get_running_loop().create_future()

        def ended(inferred: Inferred | BaseException) -> None:
            if future.done():
                return
            if ends_call:
                self._time_way_out(context)
            if isinstance(inferred, BaseException):
                future.set_exception(inferred)
            else:
                future.set_result(inferred)

        inference = Inference(service.box, info, request, terms, service.items, ended)
        try:
            inferred = await future
        finally:
            inference.cancel()
        outputs = service.delivered(tenant, request, inferred)
        return answer(request, inferred, outputs), inferred.outcome

    def _time_way_out(self, context: Any) -> None:
        """Measures the time from the inference's end to the call's."""
        end_ns = time.monotonic_ns()
        observe = self._box.way_out.observe
        context.add_done_callback(lambda _: observe(time.monotonic_ns() - end_ns))

    # -- administration

    @_said
    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Every model of the repository, served or not."""
        tenant = self._callers.tenant(context)
        models = repository_index(await self._box.snapshot(), tenant, request.ready)
        return pb.RepositoryIndexResponse(
            models=[pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in models]
        )

    @_said
    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Accepts requests for a model again."""
        await self._admin.load(self._callers.tenant(context), request.model_name)
        return pb.RepositoryModelLoadResponse()

    @_said
    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Refuses requests for a model."""
        await self._admin.unload(self._callers.tenant(context), request.model_name)
        return pb.RepositoryModelUnloadResponse()

    @_said
    async def TraceSetting(self, request: Any, context: Any) -> Any:
        """Triton's trace settings, shown or set."""
        asked = {name: list(setting.value) for name, setting in request.settings.items()}
        settings = self._admin.trace()
        if asked:
            plain = {n: v if n == "trace_level" else "".join(v) for n, v in asked.items()}
            settings = self._admin.set_trace(self._callers.tenant(context), plain)
        response = pb.TraceSettingResponse()
        for name, value in settings.items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    @_said
    async def LogSettings(self, request: Any, context: Any) -> Any:
        """Triton's log settings, shown or set."""
        settings = self._admin.logging()
        if request.settings:
            tenant = self._callers.tenant(context)
            settings = self._admin.set_logging(tenant, values_of(request.settings))
        response = pb.LogSettingsResponse()
        for name, value in settings.items():
            kind = {bool: "bool_param", int: "uint32_param"}.get(type(value), "string_param")
            setattr(response.settings[name], kind, value)
        return response

    # -- shared memory

    @_said
    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """The regions that the caller has registered."""
        regions = self._service.memory.status(self._callers.tenant(context), request.name)
        response = pb.SystemSharedMemoryStatusResponse()
        for found in regions:
            status = response.regions[found.name]
            status.name, status.key = found.name, found.key
            status.offset, status.byte_size = found.offset, found.byte_size
        return response

    @_said
    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        """Registers a region of the box's shared memory."""
        self._service.memory.register(
            self._callers.tenant(context),
            request.name,
            request.key,
            request.offset,
            request.byte_size,
        )
        return pb.SystemSharedMemoryRegisterResponse()

    @_said
    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Unregisters one region, or all of the caller's."""
        self._service.memory.unregister(self._callers.tenant(context), request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    @_said
    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """Always empty: there are no CUDA regions."""
        return pb.CudaSharedMemoryStatusResponse()

    @_said
    async def CudaSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        """Always refused: CUDA shared memory is not supported."""
        raise InvalidInput(NO_CUDA)

    @_said
    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Does nothing: there are no CUDA regions."""
        return pb.CudaSharedMemoryUnregisterResponse()


def _log_unexpected(error: BaseException) -> None:
    if is_unexpected(error):
        log.error("call failed in the door", error=repr(error), exc_info=error)


def _let_go(error: BaseException) -> None:
    """Makes an error forget the frames it came through, which hold the message.

    They also hold the future that holds the error, and gRPC keeps what `abort` raises from it.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None


def _stream_error(request: Any, refusal: Refusal) -> Any:
    response = pb.ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    detail = json.dumps(refusal.detail, default=str)
    put(response.parameters, {"code": refusal.code, "detail": detail})
    return pb.ModelStreamInferResponse(error_message=refusal.message, infer_response=response)
