"""Who calls over gRPC: looked up before a message is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc

from scheduler.errors import LaxityError
from scheduler.ingress.oip.callers import tenant_of
from scheduler.ingress.oip.outcomes import refusal_of
from scheduler.tenants import OWNER, Access, Tenant

_NAMES = ("x509_subject_alternative_name", "x509_common_name")


class Callers(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Turns away who shows no valid token, before their message is read.

    Args:
        access: Who may come in.
        certificates: Whether clients show certificates, which may stand for a token.

    Attributes:
        access: Who may come in; may be replaced.
    """

    def __init__(self, access: Access, certificates: bool) -> None:
        """Knows nobody yet."""
        self.access = access
        self._certificates = certificates

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Goes on, or answers with UNAUTHENTICATED."""
        if not self.access.required:
            return await continuation(handler_call_details)
        said = _metadata(handler_call_details.invocation_metadata).get("authorization")
        if said is None and self._certificates:
            # Which certificate came with the connection is known with the call alone.
            return _guarded(await continuation(handler_call_details), self.tenant)
        try:
            tenant_of(self.access, said, ())
        except LaxityError as error:
            return _refusing(error)
        return await continuation(handler_call_details)

    def tenant(self, context: Any) -> Tenant:
        """Who calls.

        Raises:
            Unauthorized: Nobody who may.
        """
        if not self.access.required:
            if context.peer().startswith("unix:"):
                return OWNER
            return tenant_of(self.access, None, ())
        said = self.headers(context).get("authorization")
        return tenant_of(self.access, said, _certificate_names(context))

    def headers(self, context: Any) -> Mapping[str, str]:
        """The call's metadata."""
        return _metadata(context.invocation_metadata())


def _metadata(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def _certificate_names(context: Any) -> tuple[str, ...]:
    found = context.auth_context() or {}
    return tuple(name.decode("utf-8", "replace") for kind in _NAMES for name in found.get(kind, ()))


def _guarded(handler: Any, tenant: Callable[[Any], Tenant]) -> Any:
    """The same method, for callers alone who are known."""
    if handler is None:
        return None

    async def check(context: Any) -> None:
        try:
            tenant(context)
        except LaxityError as error:
            await _abort(context, error)

    async def one(request: Any, context: Any) -> Any:
        await check(context)
        return await (handler.unary_unary or handler.stream_unary)(request, context)

    async def many(request: Any, context: Any) -> AsyncIterator[Any]:
        await check(context)
        async for answer in (handler.unary_stream or handler.stream_stream)(request, context):
            yield answer

    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, one),
        (True, False): (grpc.stream_unary_rpc_method_handler, one),
        (False, True): (grpc.unary_stream_rpc_method_handler, many),
        (True, True): (grpc.stream_stream_rpc_method_handler, many),
    }
    make, behaviour = kinds[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _refusing(error: LaxityError) -> Any:
    async def refuse(_requests: Any, context: Any) -> None:
        await _abort(context, error)

    # One shape serves all: no message is read, and none is answered.
    return grpc.stream_unary_rpc_method_handler(refuse)


async def _abort(context: Any, error: LaxityError) -> None:
    refusal = refusal_of(error)
    status = getattr(grpc.StatusCode, refusal.grpc)
    await context.abort(status, refusal.message, (("laxity-code", refusal.code),))
