"""Limits larger than gRPC's library takes as a setting: the door opens, and a cloud is dialled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from scheduler.config import load_config
from scheduler.daemon.cloud.grpc_endpoint import GrpcEndpoint
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import Access


def test_a_body_may_be_larger_than_a_message_of_grpc(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(
        "limits: {body_mb: 1000000000, connections: 1000000000}\n"
        "doors: {idle_s: 1.0e+9, grpc_messages: 1000000000, held_mb: 1000000000}\n"
    )
    config = load_config(file)
    address = f"unix://{tmp_path}/s"
    defaults = Defaults.of(config.doors, config.limits)
    body_bytes = config.limits.body_mb * 10**6

    async def talk() -> None:
        box = Box(f"unix://{tmp_path}/box")
        service = Service(box, SharedMemory(None), defaults, "laxity", 256, "info", body_bytes)
        server = GrpcServer(service, config, Access(()), [address])
        await server.open()
        endpoint = GrpcEndpoint(
            lambda options: grpc.aio.insecure_channel(f"unix:{tmp_path}/s", options),
            {},
            body_bytes,
        )
        await endpoint.close()
        await server.drain(0)

    asyncio.run(talk())
