"""Who calls over gRPC: looked up before a message is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
        if self.access.required:
            said = _metadata(handler_call_details.invocation_metadata).get("authorization")
            if said is not None or not self._certificates:
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


def _refusing(error: LaxityError) -> Any:
    refusal = refusal_of(error)
    status = getattr(grpc.StatusCode, refusal.grpc)

    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(status, refusal.message, (("laxity-code", refusal.code),))

    # One shape serves all: no message is read, and none is answered.
    return grpc.stream_unary_rpc_method_handler(refuse)
