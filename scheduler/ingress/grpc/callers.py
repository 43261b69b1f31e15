"""Identifies gRPC callers before a message is read, and ends calls with errors."""

from __future__ import annotations

import json
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from scheduler.ingress.oip.callers import tenant_of
from scheduler.ingress.oip.outcomes import refusal_of
from scheduler.tenants import OWNER, Access, Tenant

_MOST_BYTES = 3000
"""The longest error message, and the longest detail. gRPC clients accept 8 KB of trailers; for
longer ones they report the length instead of the content."""

_NAMES = ("x509_subject_alternative_name", "x509_common_name")


class Callers:
    """Identifies callers by token, certificate or unix socket.

    Args:
        access: The access rules.

    Attributes:
        access: The access rules; may be replaced.
    """

    def __init__(self, access: Access) -> None:
        """Starts with the given rules."""
        self.access = access

    def tenant(self, context: Any) -> Tenant:
        """The tenant that calls.

        Raises:
            Unauthorized: The caller is not a known tenant.
        """
        if not self.access.required:
            if context.peer().startswith("unix:"):
                return OWNER
            return tenant_of(self.access, None, ())
        said = headers_of(context).get("authorization")
        return tenant_of(self.access, said, _certificate_names(context))


def headers_of(context: Any) -> dict[str, str]:
    """The metadata of a call, except for what is binary."""
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if isinstance(value, str)}


def _certificate_names(context: Any) -> tuple[str, ...]:
    found = context.auth_context() or {}
    return tuple(name.decode("utf-8", "replace") for kind in _NAMES for name in found.get(kind, ()))


def _shortened(message: str) -> str:
    """Shortens a message to fit as gRPC sends it: percent-encoded, three characters per byte."""
    if len(quote(message)) <= _MOST_BYTES:
        return message
    return message[: _MOST_BYTES // 12] + "…"


async def abort(context: Any, error: BaseException, compat: str) -> NoReturn:
    """Ends a call with an error; its code and detail are sent as metadata.

    Args:
        context: The call's context.
        error: The error.
        compat: Whose codes and messages to use, as in `refusal_of`.
    """
    refusal = refusal_of(error, compat)
    detail = json.dumps(refusal.detail, default=str)
    metadata = [
        ("laxity-code", refusal.code),
        ("laxity-detail", detail if len(detail) <= _MOST_BYTES else "{}"),
    ]
    if refusal.retry_after_s is not None:
        metadata.append(("retry-after", str(refusal.retry_after_s)))
    status = getattr(grpc.StatusCode, refusal.grpc)
    await context.abort(status, _shortened(refusal.message), tuple(metadata))
    raise AssertionError("abort raises")
