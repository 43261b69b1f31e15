"""What all connections of the HTTP door share: access rules, held bytes, idle connections."""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduler.errors import Forbidden, Unauthorized
from scheduler.ingress.certificates import DoorContext, certificate_names
from scheduler.ingress.held import Held
from scheduler.ingress.http.connection import Connection
from scheduler.ingress.http.host_names import HostNames
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.callers import tenant_of
from scheduler.ingress.seats import Seats
from scheduler.sockets import DOOR_GIVES_UP_MS, set_up_tcp
from scheduler.tenants import OWNER, Access, Tenant

_SCRATCH_BYTES = 64 * 1024


@dataclass(slots=True)
class Caller:
    """What a connection tells about its client.

    Attributes:
        is_owner: Whether it came over a unix socket, whose permissions admitted it.
        certificates: The names in its client certificate.
        is_tls: Whether the connection is encrypted, and so the name that the client asked for is in
            the door's certificate.
        known: The last Authorization header, the rules it was checked by, and its tenant.
    """

    is_owner: bool
    certificates: tuple[str, ...]
    is_tls: bool = False
    known: tuple[str, Access, Tenant] | None = None


class HttpDoor:
    """One process's part of the HTTP door.

    Args:
        limits: The limits of the door.
        access: The access rules.
        serve: Answers a request.
        compat: Whose status codes and messages refusals have.
        host_names: Names under which it answers without tokens, in addition to those of
            `HostNames`.

    Attributes:
        limits: The limits of the door.
        access: The access rules; may be replaced.
        serve: Answers a request.
        compat: Whose status codes and messages refusals have.
        scratch: The buffer for everything but large bodies. Each read is parsed at once, so one
            buffer is enough for all connections.
        closing: Whether connections close after their last answer.
        held: Counts the bytes of bodies, until their requests are answered.
        tls: The certificates of its `tls` addresses; None if it has none.
    """

    def __init__(
        self,
        limits: HttpLimits,
        access: Access,
        serve: Callable[[Turn], None],
        compat: str = "laxity",
        host_names: Iterable[str] = (),
    ) -> None:
        """Open, with no connections."""
        self.compat = compat
        self.limits = limits
        self.access = access
        self.serve = serve
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.closing = False
        self.tls: DoorContext | None = None
        self._host_names = HostNames(host_names)
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._seats: Seats[Connection] = Seats(limits.connections)
        self.held = Held(limits.held_bytes)
        self._sweep = self._loop.call_later(limits.idle_s / 4, self._close_idle)

    def __call__(self) -> asyncio.BufferedProtocol:
        """The protocol of a new connection."""
        return Connection(self)

    # -- connections

    def enter(self, connection: Connection) -> bool:
        """Registers a connection, at the limit in place of the longest idle; False if none is."""
        if len(self._connections) >= self.limits.connections:
            if not self._idle:
                return False
            longest, _ = self._idle.popitem(last=False)
            longest.abort()
            self._connections.discard(longest)
        self._connections.add(connection)
        self.idle(connection)
        return True

    def look_again(self) -> None:
        """Closes the connections of clients whose authority may have been removed."""
        for connection in list(self._connections):
            connection.look_again()

    def leave(self, connection: Connection) -> None:
        """Removes a connection."""
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        self._seats.leave(connection)

    def idle(self, connection: Connection) -> None:
        """Marks a connection as idle."""
        if connection in self._connections:
            self._idle[connection] = time.monotonic()
            self._idle.move_to_end(connection)
            self._seats.leave(connection)  # an idle one is closed when room is needed

    def busy(self, connection: Connection) -> None:
        """Marks a connection as busy."""
        self._idle.pop(connection, None)

    def seat(self, connection: Connection, tenant: Tenant) -> None:
        """Counts a connection as a tenant's until it is idle.

        Raises:
            Overloaded: The tenant already has as many busy connections as it may.
        """
        self._seats.take(connection, tenant)

    def caller_of(self, transport: asyncio.BaseTransport) -> Caller:
        """What is known of a client before it has sent anything."""
        peer = transport.get_extra_info("socket")
        if peer is not None:
            set_up_tcp(peer, DOOR_GIVES_UP_MS)
        return Caller(
            is_owner=peer is not None and peer.family == socket.AF_UNIX,
            certificates=certificate_names(transport.get_extra_info("peercert")),
            is_tls=transport.get_extra_info("ssl_object") is not None,
        )

    # -- requests

    def admit(self, caller: Caller | None, headers: Mapping[str, str]) -> Tenant:
        """The tenant of a request.

        Raises:
            Unauthorized: The caller is not a known tenant.
            Forbidden: The request may be from a web page, and no token is required: any page in a
                browser on the box could send it.
        """
        if caller is None:
            raise Unauthorized("the connection is gone")
        if not self.access.required:
            if "origin" in headers:
                raise Forbidden(
                    "web pages may send requests only to a door that needs a token (token_file)"
                )
            if caller.is_owner:
                return OWNER
            if not caller.is_tls:
                self._host_names.check(headers.get("host", ""))
            return tenant_of(self.access, None, caller.certificates)
        said = headers.get("authorization", "")
        known = caller.known
        if known is not None and known[1] is self.access and _same(known[0], said):
            return known[2]
        tenant = tenant_of(self.access, said, caller.certificates)
        caller.known = said, self.access, tenant
        return tenant

    # -- shutdown

    def stop(self) -> None:
        """Closes every connection as soon as it has no request in flight."""
        self.closing = True
        self._sweep.cancel()
        for connection in list(self._connections):
            connection.say_goodbye()

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def _close_idle(self) -> None:
        oldest_s = time.monotonic() - self.limits.idle_s
        while self._idle:
            connection, since_s = next(iter(self._idle.items()))
            if since_s > oldest_s:
                break
            del self._idle[connection]
            connection.close()
        self._sweep = self._loop.call_later(self.limits.idle_s / 4, self._close_idle)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
