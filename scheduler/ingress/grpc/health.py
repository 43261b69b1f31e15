"""The standard health service, `grpc.health.v1.Health`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scheduler.errors import Unauthorized
from scheduler.ingress.grpc.callers import Callers, abort
from scheduler.ingress.oip.service import Service

_LOOK_S = 1.0
"""How often a watched state is checked."""


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Tells whether the box serves.

    Args:
        service: The settings and state that the doors share.
        names: The services of this door.
        callers: Identifies callers; those of new calls have been identified already.
    """

    def __init__(self, service: Service, names: tuple[str, ...], callers: Callers) -> None:
        """Starts without watchers."""
        self._service = service
        self._callers = callers
        self._names = ("", *names)

    async def Check(self, request: Any, context: Any) -> Any:
        """The current state."""
        if request.service not in self._names:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r:.80}"
            )
        return await self._state()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The current state, and each change of it, until the door is draining.

        It ends for a caller whose token or certificate is no longer valid, too.
        """
        last = None
        while True:
            is_last = self._service.draining
            if request.service in self._names:
                state = await self._state()
            else:
                state = _response("SERVICE_UNKNOWN")
            if state != last:
                last = state
                yield state
            if is_last:
                return  # the door waits for all calls to end
            await asyncio.sleep(_LOOK_S)
            try:
                self._callers.tenant(context)
            except Unauthorized as error:
                await abort(context, error, self._service.compat)

    async def _state(self) -> Any:
        return _response("SERVING" if await self._service.is_ready() else "NOT_SERVING")


def _response(state: str) -> Any:
    return health_pb2.HealthCheckResponse(status=state)
