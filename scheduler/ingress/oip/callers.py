"""Who is at the door, by token or certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.errors import Unauthorized
from scheduler.tenants import ANYONE, Access, Tenant

_SCHEME = "bearer "


def tenant_of(access: Access, authorization: str | None, certificates: Iterable[str]) -> Tenant:
    """Who asks.

    Args:
        access: Who may come in.
        authorization: The header or metadata of that name.
        certificates: The names in the client certificate, whose signature is checked already.

    Raises:
        Unauthorized: Nobody who may.
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


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a certificate, as `ssl` gives it: DNS and URI ones, and the common name."""
    if not peer:
        return ()
    names = [value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    names += [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return tuple(names)
