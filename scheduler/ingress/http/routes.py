"""The paths of the HTTP door and their answers, except for inference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import unquote

from scheduler.errors import InvalidInput
from scheduler.ingress.http.coding import decoded
from scheduler.ingress.http.infer import InferResponder
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.messages import Request, Response, as_json, json_object
from scheduler.ingress.http.responder import Responder
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.metrics import CONTENT_TYPE, metrics
from scheduler.ingress.oip.admin import Admin
from scheduler.ingress.oip.metadata import (
    model_config,
    model_metadata,
    repository_index,
    server_metadata,
    visible,
)
from scheduler.ingress.oip.outcomes import MethodNotAllowed, NoSuchPath, TooLarge
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import NO_CUDA

_SMALL_BYTES = 64 * 1024

Handler = Callable[["Routes", Request, Mapping[str, str]], Awaitable[Response]]


class Routes:
    """Answers every request of the HTTP door.

    Args:
        service: The settings and state that the doors share.
        limits: The limits of the door.
    """

    def __init__(self, service: Service, limits: HttpLimits) -> None:
        """Starts with no requests."""
        self._responder = Responder(service)
        self._infer = InferResponder(self._responder, limits)
        self._box = service.box
        self._service = service
        self._admin = Admin(service)

    def serve(self, turn: Turn) -> None:
        """Answers one request."""
        request = turn.request
        parts = tuple(map(unquote, request.path.strip("/").split("/")))
        if request.method == "POST" and parts[-1] == "infer":
            found = _named(_INFER, parts) or _named(_INFER_VERSION, parts)
            if found is not None:
                self._infer.serve(turn, found["model"], found.get("version", ""))
                return
        try:
            handler, named = _route(request.method, parts)
        except InvalidInput as error:
            self._responder.refuse(turn, error)
            return
        self._responder.start(turn, self._answer(handler, request, named))

    async def _answer(
        self, handler: Handler, request: Request, named: Mapping[str, str]
    ) -> Response:
        if "model" in named:
            request.tenant.check_model(named["model"])
        return await handler(self, request, named)

    # -- health and metadata

    async def live(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Whether this process answers."""
        return as_json({"live": True})

    async def ready(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Whether a target is up, and new requests are admitted."""
        ready = not self._service.draining and (await self._box.snapshot()).ready
        return as_json({"ready": ready}, 200 if ready else 503)

    async def server(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Name, version and extensions."""
        return as_json(server_metadata())

    async def models(self, request: Request, _named: Mapping[str, str]) -> Response:
        """The names of the models that the tenant may use."""
        snapshot = await self._box.snapshot()
        return as_json({"models": visible(snapshot.models, request.tenant)})

    async def model(self, request: Request, named: Mapping[str, str]) -> Response:
        """Versions and tensors of a model."""
        info = await self._box.model(named["model"], named.get("version", ""), request.tenant)
        return as_json(model_metadata(info))

    async def model_ready(self, request: Request, named: Mapping[str, str]) -> Response:
        """Whether a target can run a model now."""
        model, version = named["model"], named.get("version", "")
        ready = await self._service.is_model_ready(model, version, request.tenant)
        return as_json({"name": model, "ready": ready}, 200 if ready else 503)

    async def config(self, request: Request, named: Mapping[str, str]) -> Response:
        """A model in the form of Triton's model configuration."""
        info = await self._box.model(named["model"], named.get("version", ""), request.tenant)
        return as_json(model_config(info))

    async def statistics(self, request: Request, named: Mapping[str, str]) -> Response:
        """Statistics of one model or all."""
        model, version = named.get("model", ""), named.get("version", "")
        counted = await self._service.statistics(model, version, request.tenant)
        return as_json({"model_stats": counted})

    async def metrics(self, request: Request, _named: Mapping[str, str]) -> Response:
        """Metrics of the box for Prometheus."""
        request.tenant.check_scope("metrics")
        status, counted = await asyncio.gather(self._box.ask("status"), self._box.ask("statistics"))
        return Response(200, (metrics(status, counted),), CONTENT_TYPE)

    async def openapi(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """The OpenAPI description of this door."""
        return Response(200, (_openapi(),))

    # -- administration

    async def index(self, request: Request, _named: Mapping[str, str]) -> Response:
        """Every model of the repository, served or not."""
        ready_only = _object(request).get("ready", False)
        if not isinstance(ready_only, bool):
            raise InvalidInput("ready is true or false")
        return as_json(repository_index(await self._box.snapshot(), request.tenant, ready_only))

    async def load(self, request: Request, named: Mapping[str, str]) -> Response:
        """Accepts requests for a model again."""
        _object(request)
        await self._admin.load(request.tenant, named["model"])
        return as_json({})

    async def unload(self, request: Request, named: Mapping[str, str]) -> Response:
        """Refuses requests for a model."""
        _object(request)
        await self._admin.unload(request.tenant, named["model"])
        return as_json({})

    async def policy(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """The policy's name and options."""
        return as_json((await self._box.snapshot()).policy)

    async def swap_policy(self, request: Request, _named: Mapping[str, str]) -> Response:
        """Swaps the policy."""
        said = _object(request)
        return as_json(
            await self._admin.swap_policy(request.tenant, said.get("name"), said.get("options"))
        )

    async def trace(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Triton's trace settings."""
        return as_json(self._admin.trace())

    async def set_trace(self, request: Request, _named: Mapping[str, str]) -> Response:
        """Sets Triton's trace settings."""
        return as_json(self._admin.set_trace(request.tenant, _object(request)))

    async def logging(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Triton's log settings."""
        return as_json(self._admin.logging())

    async def set_logging(self, request: Request, _named: Mapping[str, str]) -> Response:
        """Sets Triton's log settings."""
        return as_json(self._admin.set_logging(request.tenant, _object(request)))

    # -- shared memory

    async def memory(self, request: Request, named: Mapping[str, str]) -> Response:
        """The regions that the caller has registered."""
        regions = self._service.memory.status(request.tenant, named.get("region", ""))
        if "region" in named and not regions:
            raise InvalidInput(f"shared memory region {named['region']!r} is not registered")
        return as_json(
            [
                {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
                for r in regions
            ]
        )

    async def register(self, request: Request, named: Mapping[str, str]) -> Response:
        """Registers a region of the box's shared memory."""
        said = _object(request)
        self._service.memory.register(
            request.tenant,
            named["region"],
            said.get("key"),
            said.get("offset", 0),
            said.get("byte_size"),
        )
        return as_json({})

    async def unregister(self, request: Request, named: Mapping[str, str]) -> Response:
        """Unregisters one region, or all of the caller's."""
        self._service.memory.unregister(request.tenant, named.get("region", ""))
        return as_json({})

    async def no_gpu_memory(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Always empty: there are no CUDA regions."""
        return as_json([])

    async def no_gpu_register(self, _request: Request, _named: Mapping[str, str]) -> Response:
        """Always refused: CUDA shared memory is not supported."""
        raise InvalidInput(NO_CUDA)


_MODEL = "v2/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"
_MEMORY = "v2/systemsharedmemory"
_GPU_MEMORY = "v2/cudasharedmemory"
_PATHS: dict[str, dict[str, Handler]] = {
    "v2": {"GET": Routes.server},
    "v2/health/live": {"GET": Routes.live},
    "v2/health/ready": {"GET": Routes.ready},
    "v2/models": {"GET": Routes.models},
    "v2/models/stats": {"GET": Routes.statistics},
    _MODEL: {"GET": Routes.model},
    _VERSION: {"GET": Routes.model},
    f"{_MODEL}/ready": {"GET": Routes.model_ready},
    f"{_VERSION}/ready": {"GET": Routes.model_ready},
    f"{_MODEL}/config": {"GET": Routes.config},
    f"{_VERSION}/config": {"GET": Routes.config},
    f"{_MODEL}/stats": {"GET": Routes.statistics},
    f"{_VERSION}/stats": {"GET": Routes.statistics},
    "v2/repository/index": {"POST": Routes.index},
    "v2/repository/models/{model}/load": {"POST": Routes.load},
    "v2/repository/models/{model}/unload": {"POST": Routes.unload},
    "v2/policy": {"GET": Routes.policy, "POST": Routes.swap_policy},
    "v2/trace/setting": {"GET": Routes.trace, "POST": Routes.set_trace},
    f"{_MODEL}/trace/setting": {"GET": Routes.trace, "POST": Routes.set_trace},
    "v2/logging": {"GET": Routes.logging, "POST": Routes.set_logging},
    f"{_MEMORY}/status": {"GET": Routes.memory},
    f"{_MEMORY}/region/{{region}}/status": {"GET": Routes.memory},
    f"{_MEMORY}/region/{{region}}/register": {"POST": Routes.register},
    f"{_MEMORY}/unregister": {"POST": Routes.unregister},
    f"{_MEMORY}/region/{{region}}/unregister": {"POST": Routes.unregister},
    f"{_GPU_MEMORY}/status": {"GET": Routes.no_gpu_memory},
    f"{_GPU_MEMORY}/region/{{region}}/status": {"GET": Routes.no_gpu_memory},
    f"{_GPU_MEMORY}/region/{{region}}/register": {"POST": Routes.no_gpu_register},
    f"{_GPU_MEMORY}/unregister": {"POST": Routes.no_gpu_memory},
    f"{_GPU_MEMORY}/region/{{region}}/unregister": {"POST": Routes.no_gpu_memory},
    "metrics": {"GET": Routes.metrics},
    "openapi.json": {"GET": Routes.openapi},
}
_ROUTES = {tuple(path.split("/")): methods for path, methods in _PATHS.items()}
_INFER = tuple(f"{_MODEL}/infer".split("/"))
_INFER_VERSION = tuple(f"{_VERSION}/infer".split("/"))


def _route(method: str, parts: tuple[str, ...]) -> tuple[Handler, Mapping[str, str]]:
    allowed: set[str] = set()
    for pattern, methods in _ROUTES.items():
        named = _named(pattern, parts)
        if named is not None:
            if method in methods:
                return methods[method], named
            allowed.update(methods)
    if _named(_INFER, parts) is not None or _named(_INFER_VERSION, parts) is not None:
        allowed.add("POST")
    if allowed:
        methods_said = ", ".join(sorted(allowed))
        raise MethodNotAllowed(f"this path takes {methods_said}", {"allow": methods_said})
    raise NoSuchPath("there is nothing at this path; GET /openapi.json tells what there is")


def _named(pattern: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    """The parts of a path in the places of a pattern's names; None if the path does not match."""
    if len(pattern) != len(parts):
        return None
    named = {}
    for want, have in zip(pattern, parts, strict=True):
        if want.startswith("{"):
            named[want[1:-1]] = have
        elif want != have:
            return None
    return named


def _object(request: Request) -> dict[str, Any]:
    """Parses the small JSON object in a body; empty if there is no body."""
    body = request.body
    if coding := request.headers.get("content-encoding"):
        body = decoded(body, coding, _SMALL_BYTES)
    if len(body) > _SMALL_BYTES:
        raise TooLarge(f"the body has {len(body)} bytes, at most {_SMALL_BYTES} are taken")
    return json_object(body) if len(body) else {}


@cache
def _openapi() -> bytes:
    return (resources.files(__package__) / "openapi.json").read_bytes()
