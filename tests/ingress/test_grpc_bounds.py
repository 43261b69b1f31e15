"""What gRPC's library is told: limits beyond its settings, and how long it waits for a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

from scheduler.config.box import Config, load_config
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
        box = Box(f"unix://{folder}/box")
        defaults, body_bytes = Defaults.of(config.doors, config.limits), config.limits.body_mb
        memory = SharedMemory(None)
        service = Service(box, memory, defaults, "laxity", 256, "info", body_bytes * 10**6)
        door = GrpcServer(service, config, Access(()), [f"unix://{folder}/s"])
        await door.open()
        try:
            await work
        finally:
            await door.drain(0)

    asyncio.run(talk())


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
