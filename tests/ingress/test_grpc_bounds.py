"""What gRPC's library is told: limits beyond its settings, and how long it waits for a client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from benchmarks.ports import free_port
from scheduler.config.box import Config, load_config
from scheduler.config.doors import TlsConfig
from scheduler.daemon.cloud.grpc_endpoint import GrpcEndpoint
from scheduler.ingress.grpc import server
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import Access
from tests.waiting import PATIENCE_S


def test_a_body_may_be_larger_than_a_message_of_grpc(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(
        "limits: {body_mb: 1000000000, connections: 1000000000}\n"
        "doors: {idle_s: 1.0e+9, grpc_messages: 1000000000, held_mb: 1000000000}\n"
    )
    at_a_door(load_config(file), tmp_path, dialled(tmp_path))


def at_a_door(config: Config, folder: Path, work: Awaitable[None]) -> None:
    """Does something while a door is open on the socket `s` of a folder."""

    async def talk() -> None:
        async with a_door(config, folder, [f"unix://{folder}/s"]):
            await work

    asyncio.run(talk())


@contextlib.asynccontextmanager
async def a_door(config: Config, folder: Path, urls: Sequence[str]) -> AsyncIterator[GrpcServer]:
    """An open door."""
    box = Box(f"unix://{folder}/box")
    defaults, body_bytes = Defaults.of(config.doors, config.limits), config.limits.body_mb * 10**6
    service = Service(box, SharedMemory(None), defaults, "laxity", 256, "info", body_bytes)
    door = GrpcServer(service, config, Access(()), urls)
    await door.open()
    try:
        yield door
    finally:
        await door.drain(0)


async def dialled(folder: Path) -> None:
    def dial(options: Any) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{folder}/s", options)

    await GrpcEndpoint(dial, {}, 10**15).close()


def test_who_connects_and_says_nothing_has_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.1)

    async def silent() -> None:
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()

    at_a_door(Config(), tmp_path, silent())


def test_every_address_takes_new_certificates(tmp_path: Path) -> None:
    ours = trustme.CA()
    pair = ours.issue_cert("127.0.0.1")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    ours.cert_pem.write_to_path(tmp_path / "ca.pem")
    files = {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    tls = TlsConfig.model_validate(files, context={"base": tmp_path})
    ports = [free_port(), free_port()]

    def says(port: int, context: ssl.SSLContext) -> bool:
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1"),
            ):
                return True
        except (ssl.SSLError, ConnectionError):
            return False

    async def let_in(authority: trustme.CA) -> list[bool]:
        context = ssl.create_default_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # which says it during the handshake
        context.set_alpn_protocols(["h2"])
        ours.configure_trust(context)
        authority.issue_cert("arm-7.example").configure_cert(context)
        return [await asyncio.to_thread(says, port, context) for port in ports]

    async def talk() -> None:
        urls = [f"tls://127.0.0.1:{port}" for port in ports]
        async with a_door(Config(tls=tls), tmp_path, urls) as door:
            assert await let_in(ours) == [True, True]
            another = trustme.CA()
            another.cert_pem.write_to_path(tmp_path / "ca.pem")
            door.reload(Access(()), tls)
            assert await let_in(ours) == [False, False]
            assert await let_in(another) == [True, True]

    asyncio.run(talk())
