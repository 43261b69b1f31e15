"""Who is at the other end of a native connection, and in whose name it asks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from scheduler.errors import ProtocolError
from scheduler.ingress.certificates import certificate_names
from scheduler.tenants import ANYONE, OWNER, Access, Tenant
from scheduler.wire import VERSION, Header


class Caller:
    """The client of one connection, who is nobody before its hello.

    Args:
        is_door: Whether it is a door process, which names the tenant of each request.

    Attributes:
        is_door: Whether it is a door process.
        is_known: Whether its hello was accepted.
        is_box: Whether it has introduced itself as another box of the site.
        tenant: Who it is; of a door, who holds what it sends before that is a request.
    """

    def __init__(self, is_door: bool) -> None:
        """Has not said hello."""
        self.is_door = is_door
        self.is_known = self.is_box = False
        self.tenant = OWNER if is_door else ANYONE
        self._is_local = False
        self._token: Any = None
        self._names: tuple[str, ...] = ()

    def greet(self, hello: Header, access: Access, transport: asyncio.Transport) -> None:
        """Finds out who it is by its first message.

        Raises:
            ProtocolError: The message is no hello, or of another version of the protocol.
            Unauthorized: Neither its token nor its certificate is known.
        """
        if hello["t"] != "hello":
            raise ProtocolError("the first frame of a connection is hello")
        if hello.get("v") != VERSION:
            raise ProtocolError(
                f"this box speaks version {VERSION} of the native protocol, not {hello.get('v')!r}"
            )
        peer = transport.get_extra_info("socket")
        self._is_local = peer is not None and peer.family == socket.AF_UNIX
        if self.is_door:
            return
        if access.required:
            self._token = hello.get("token")
            self._names = certificate_names(transport.get_extra_info("peercert"))
            self._look_up(access)
        elif self._is_local:
            self.tenant = OWNER

    def look_again(self, access: Access) -> None:
        """Finds out who it is by changed access rules; for a client that is known, and no door.

        Raises:
            Unauthorized: Neither its token nor its certificate is known any more.
            Forbidden: It is another box, and its tenant may not have those any more.
        """
        if access.required:
            self._look_up(access)
            if self.is_box:
                self.tenant.check_scope("peer")

    def _look_up(self, access: Access) -> None:
        self.tenant = access.by_token_or_certificate(self._token, self._names)

    def tenant_of(self, header: Header, access: Access) -> Tenant:
        """In whose name a message asks: its own, or that of the tenant whom a door names."""
        if not self.is_door:
            return self.tenant
        name = header.get("tenant")
        return access.by_name(name) if isinstance(name, str) else ANYONE

    @property
    def is_at_home(self) -> bool:
        """Whether it is a process of this box's own user, on this machine."""
        return self._is_local and self.tenant.name == OWNER.name
