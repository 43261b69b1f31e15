"""The gRPC door of one process: its addresses, its certificates, its shutdown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from scheduler.config.box import Config
from scheduler.config.doors import TlsConfig
from scheduler.daemon.asyncio_tasks import start_task
from scheduler.ingress.certificates import HANDSHAKE_S, authorities_of, server_context
from scheduler.ingress.grpc.callers import Callers
from scheduler.ingress.grpc.health import HealthService
from scheduler.ingress.grpc.reading import Places, Reading
from scheduler.ingress.grpc.service import InferenceService
from scheduler.ingress.held import Held
from scheduler.ingress.oip.service import Service
from scheduler.ingress.unix_door import keep_there
from scheduler.tenants import Access

_ENVELOPE_BYTES = 1_000_000
"""The most bytes of a message beside its tensors."""

_STREAMS = 128
_INT_MAX = 2**31 - 1  # the library's largest setting; no message can be longer
_UNREAD_BYTES = 512 * 1024

_LEAVE_S = 5.0
"""How long calls in flight may take to end when an authority was removed that may have let their
clients in."""


class GrpcServer:
    """Serves gRPC on addresses that it binds itself.

    Args:
        service: The settings and state that the doors share.
        config: The box's configuration.
        access: The access rules.
        addresses: `tcp://`, `tls://` or `unix://` URLs.
    """

    def __init__(
        self, service: Service, config: Config, access: Access, addresses: Sequence[str]
    ) -> None:
        """Closed until `open`."""
        doors = config.doors
        calls = 2 * config.limits.connections  # of which one tenant may have half: `connections`
        self._callers = Callers(access)
        self._held = Held(doors.held_mb * 10**6)
        self._reading = Reading(
            self._callers,
            self._held,
            Held(calls, "calls", most_of_one=0.5),
            Held(doors.grpc_messages, "streams"),
            Places(doors.grpc_messages, doors.request_s, doors.compat),
            doors.json_mb * 10**6,
        )
        self._addresses = addresses
        self._tls = config.tls
        self._authorities = frozenset() if config.tls is None else authorities_of(config.tls)
        self._certificates: list[_Certificates] = []
        self._encrypted: list[grpc.aio.Server] = []
        self._replacing = asyncio.Lock()
        self._service = service
        self._calls = min(calls + doors.grpc_messages, _INT_MAX)
        self._options = _options(config)
        self._servers: list[grpc.aio.Server] = []
        self._watches: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts to listen.

        Raises:
            OSError: An address can't be bound.
        """
        if plain := [url for url in self._addresses if not url.startswith("tls:")]:
            await self._listen(plain)
        await self._listen_encrypted()
        for url in self._addresses:
            scheme, _, path = url.partition("://")
            if scheme == "unix":
                listen = partial(self._listen, (url,))
                self._watches.append(start_task(keep_there(path, listen), f"the watch of {path}"))

    async def _listen_encrypted(self) -> None:
        """Serves on the `tls` addresses with a server of their own, in place of an earlier one.

        The library can't close single connections, and so not those of clients that must leave.
        """
        found = [url for url in self._addresses if url.startswith("tls:")]
        async with self._replacing:
            before, self._encrypted, self._certificates = self._encrypted, [], []
            try:
                self._encrypted = [await self._listen(found)] if found else []
            finally:
                for server in before:
                    await server.stop(_LEAVE_S)
                    self._servers.remove(server)

    async def _listen(self, addresses: Sequence[str]) -> grpc.aio.Server:
        """Serves on addresses with a new server, because a running one takes no further address.

        If a unix socket's file was deleted, the old server keeps serving its open connections, at
        the cost of a file descriptor and a few KB.
        """
        server = self._made()
        for url in addresses:
            scheme, _, rest = url.partition("://")
            target = f"unix:{rest}" if scheme == "unix" else rest
            try:
                if scheme == "tls" and self._tls is not None:
                    self._certificates.append(_Certificates(self._tls))
                    server.add_secure_port(target, self._certificates[-1].credentials())
                else:
                    server.add_insecure_port(target)
            except RuntimeError:  # its text names the address and a setting for debugging
                raise OSError(f"gRPC can't listen on {url}") from None
            if scheme == "unix":
                os.chmod(rest, 0o600)
        await server.start()
        self._servers.append(server)
        return server

    def _made(self) -> grpc.aio.Server:
        """A new server without addresses; all servers share the limits on messages."""
        server = grpc.aio.server(
            interceptors=(self._reading,),
            options=self._options,
            maximum_concurrent_rpcs=self._calls,
        )
        inference = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        stubs.add_GRPCInferenceServiceServicer_to_server(
            InferenceService(self._service, self._callers, self._held), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(
            HealthService(self._service, (inference,), self._callers), server
        )
        reflection.enable_server_reflection((inference, health, reflection.SERVICE_NAME), server)
        return server

    def reload(self, access: Access, tls: TlsConfig | None) -> None:
        """Applies new access rules; later handshakes use what the certificate files hold now.

        Connections are closed if an authority that may have let them in was removed.

        Raises:
            ConfigError: A certificate file is not what it should be; handshakes go on as before.
        """
        self._callers.access = access
        if tls is None:
            return
        server_context(tls)  # gRPC itself would find mistakes only at a handshake
        before, self._authorities = self._authorities, authorities_of(tls)
        self._tls = tls
        for certificates in self._certificates:
            certificates.read_again(tls)
        if not before <= self._authorities:
            start_task(self._listen_encrypted(), "the change of authorities")

    async def drain(self, seconds: float) -> None:
        """Starts nothing new, and waits for calls in flight, at most so many seconds."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*(server.stop(seconds) for server in self._servers))


class _Certificates:
    """Gives gRPC the certificates of one address, and new ones after a reload."""

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._fresh: Any = None

    def credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._tls),
            self._fetch,
            require_client_authentication=self._tls.client_ca is not None,
        )

    def read_again(self, tls: TlsConfig) -> None:
        """Takes what is in the files now, for the handshakes from then on."""
        self._fresh = _configuration(tls)

    def _fetch(self) -> Any:
        """Called before each handshake; None keeps the current certificates."""
        fresh, self._fresh = self._fresh, None
        return fresh


def _configuration(tls: TlsConfig) -> Any:
    pair = tls.key.read_bytes(), tls.cert.read_bytes()
    roots = tls.client_ca.read_bytes() if tls.client_ca is not None else None
    return grpc.ssl_server_certificate_configuration([pair], roots)


def _options(config: Config) -> list[tuple[str, int]]:
    most = config.limits.body_mb * 10**6 + _ENVELOPE_BYTES
    return [
        ("grpc.max_receive_message_length", min(most, _INT_MAX)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.max_allowed_incoming_connections", config.limits.connections),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        # How much may arrive before a call reads it. The second option keeps the window from
        # growing by itself.
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_metadata_size", min(config.limits.header_kb * 1000, 64_000)),
        ("grpc.max_connection_idle_ms", min(int(config.doors.idle_s * 1000), _INT_MAX)),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 1),
    ]
