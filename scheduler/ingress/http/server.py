"""The HTTP door of one process: its sockets, its certificates, its shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from socket import AF_UNIX, socket

from scheduler.config.box import Config
from scheduler.config.doors import TlsConfig
from scheduler.daemon.asyncio_tasks import wait_until
from scheduler.ingress.certificates import HANDSHAKE_S, DoorContext
from scheduler.ingress.http.door import HttpDoor
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.routes import Routes
from scheduler.ingress.oip.service import Service
from scheduler.ingress.unix_door import UnixDoor
from scheduler.tenants import Access

_PIPELINED = 32


class HttpServer:
    """Serves HTTP on sockets that the agent has bound.

    Args:
        service: The settings and state that the doors share.
        config: The box's configuration.
        access: The access rules.
        sockets: Listening sockets, each with its address.
    """

    def __init__(
        self,
        service: Service,
        config: Config,
        access: Access,
        sockets: Sequence[tuple[socket, str]],
    ) -> None:
        """Closed until `open`."""
        limits = http_limits(config)
        routes = Routes(service, limits)
        self._door = HttpDoor(limits, access, routes.serve, service.compat, config.doors.host_names)
        self._sockets = sockets
        if config.tls is not None:
            self._door.tls = DoorContext(config.tls, ("http/1.1",))
        self._servers: list[asyncio.AbstractServer | UnixDoor] = []

    async def open(self) -> None:
        """Starts to accept connections."""
        loop = asyncio.get_running_loop()
        for listening, address in self._sockets:
            tls = self._door.tls if address.startswith("tls://") else None
            server: asyncio.AbstractServer | UnixDoor
            if listening.family == AF_UNIX:
                server = await UnixDoor(self._door, listening.getsockname(), listening).open()
            else:
                timeout = HANDSHAKE_S if tls is not None else None
                server = await loop.create_server(
                    self._door, sock=listening, ssl=tls, ssl_handshake_timeout=timeout
                )
            self._servers.append(server)

    def reload(self, access: Access, tls: TlsConfig | None) -> None:
        """Applies new access rules; later handshakes use what the certificate files hold now.

        Connections are closed if an authority that may have let them in was removed.

        Raises:
            ConfigError: A certificate file is not what it should be; handshakes go on as before.
        """
        self._door.access = access
        if self._door.tls is not None and tls is not None:
            self._door.tls.read_again(tls)
            self._door.look_again()

    async def drain(self, seconds: float) -> None:
        """Stops listening, and waits for the last answers, at most so many seconds."""
        for server in self._servers:
            server.close()
        self._door.stop()
        await wait_until(lambda: not self._door.open_connections, seconds)


def http_limits(config: Config) -> HttpLimits:
    """The limits that a configuration sets."""
    doors, limits = config.doors, config.limits
    json_bytes = min(doors.json_mb * 10**6, limits.body_mb * 10**6)
    return HttpLimits(
        head_bytes=min(limits.header_kb * 1000, 64_000),
        body_bytes=limits.body_mb * 10**6,
        json_bytes=json_bytes,
        held_bytes=doors.held_mb * 10**6,
        connections=limits.connections,
        pipelined=_PIPELINED,
        request_s=doors.request_s,
        idle_s=doors.idle_s,
    )
