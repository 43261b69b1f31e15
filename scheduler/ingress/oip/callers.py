"""Identifies callers by token or certificate."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.errors import Unauthorized
from scheduler.tenants import ANYONE, Access, Tenant

_SCHEME = "bearer "


def tenant_of(access: Access, authorization: str | None, certificates: Iterable[str]) -> Tenant:
    """The tenant of a caller.

    Args:
        access: The access rules.
        authorization: The header or metadata of that name.
        certificates: The names in the client certificate, which is already verified.

    Raises:
        Unauthorized: The caller is not a known tenant.
    """
    if not access.required:
        return ANYONE
    if not authorization:
        if (tenant := access.by_certificate(certificates)) is not None:
            return tenant
        raise Unauthorized("a token is needed, as in: Authorization: Bearer TOKEN")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise Unauthorized("the Authorization header should be: Bearer TOKEN")
    return access.by_token(authorization[len(_SCHEME) :].strip())
