from __future__ import annotations

import asyncio
import os
import shutil
import socket

import grpc
import pytest
import structlog
import uvloop
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from edge_agent.listening import bind
from scheduler.address import Address
from scheduler.config.box import Config
from scheduler.ingress import unix_door
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.http.server import HttpServer
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.ingress.unix_door import UnixDoor
from scheduler.tenants import Access
from tests.waiting import PATIENCE_S


class Echo(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(100)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]))


async def says(reader, writer):
    writer.write(b"a")
    return await reader.read(1) == b"a"


async def connected(path):
    """A connection, once there is somebody."""
    while True:
        try:
            return await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(0)


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_door_whose_file_is_deleted_is_there_again(tmp_path, monkeypatch, with_folder):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    path = tmp_path / "run" / "s"
    path.parent.mkdir()

    async def main():
        door = await UnixDoor(Echo, str(path)).open()
        before = await connected(path)
        shutil.rmtree(path.parent) if with_folder else path.unlink()
        after = await asyncio.wait_for(connected(path), PATIENCE_S)
        assert await says(*before)
        assert await says(*after)
        assert path.stat().st_mode & 0o777 == 0o600
        door.close()
        for _, writer in (before, after):
            writer.close()

    with structlog.testing.capture_logs() as logs:
        uvloop.run(main())
    assert [log["log_level"] for log in logs] == ["warning"]


def test_one_that_can_not_be_there_again_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    folder = tmp_path / "run"
    folder.mkdir()

    async def main():
        door = await UnixDoor(Echo, str(folder / "s")).open()
        os.rename(folder, tmp_path / "other")
        folder.write_text("")
        while not logs:
            await asyncio.sleep(0)
        folder.unlink()
        _, writer = await asyncio.wait_for(connected(folder / "s"), PATIENCE_S)
        writer.close()
        door.close()

    with structlog.testing.capture_logs() as logs:
        uvloop.run(main())
    assert [log["log_level"] for log in logs] == ["error", "warning"]


def service():
    """What a door needs of a box that is away."""
    defaults = Defaults.of(Config().doors, Config().limits)
    return Service(Box("unix:///none"), SharedMemory(None), defaults, "laxity", 256, "info", 10**6)


def http_doors(path, count=1):
    """As many processes have, on the one socket that the agent has made."""
    made, url = bind(Address("unix", path=str(path)), listens=True)
    assert made is not None
    with made:
        sockets = [made.dup() for _ in range(count)]
    return [HttpServer(service(), Config(), Access(), [(each, url)]) for each in sockets]


async def answers(path):
    """Whether an HTTP door does, once there is one."""
    reader, writer = await asyncio.wait_for(connected(path), PATIENCE_S)
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return line == b"HTTP/1.1 200 OK\r\n"


def test_http_doors_whose_file_is_deleted_are_there_again(tmp_path, monkeypatch):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    path = tmp_path / "s"

    async def main():
        doors = http_doors(path, 2)
        for door in doors:
            await door.open()
        assert await answers(path)
        path.unlink()
        assert await answers(path)
        assert path.stat().st_mode & 0o777 == 0o600
        for door in doors:
            await door.drain(0)

    uvloop.run(main())


def test_an_http_door_that_starts_again_after_that_is_reached(tmp_path):
    """The agent hands it the socket whose file was deleted; the file is its predecessor's."""
    path = tmp_path / "s"

    async def main():
        (door,) = http_doors(path)
        path.unlink()
        with socket.socket(socket.AF_UNIX) as predecessor:
            predecessor.bind(str(path))
        await door.open()
        assert await answers(path)
        await door.drain(0)

    uvloop.run(main())


def test_a_grpc_door_whose_file_is_deleted_is_there_again(tmp_path, monkeypatch):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    path = tmp_path / "run" / "s"
    path.parent.mkdir()

    async def is_live(channel):
        stub = stubs.GRPCInferenceServiceStub(channel)
        call = stub.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=PATIENCE_S)
        return (await call).live

    async def main():
        door = GrpcServer(service(), Config(), Access(), [f"unix://{path}"])
        await door.open()
        async with grpc.aio.insecure_channel(f"unix:{path}") as before:
            assert await is_live(before)
            shutil.rmtree(path.parent)
            options = [("grpc.max_reconnect_backoff_ms", 100)]
            async with grpc.aio.insecure_channel(f"unix:{path}", options) as after:
                assert await is_live(after)
            assert await is_live(before)
        assert path.stat().st_mode & 0o777 == 0o600
        await door.drain(0)

    asyncio.run(main())


def test_a_grpc_door_that_can_not_be_there_again_says_so_and_tries_on(tmp_path, monkeypatch):
    monkeypatch.setattr(unix_door, "_LOOK_S", 0.005)
    path = tmp_path / "run" / "s"
    path.parent.mkdir()

    async def main():
        door = GrpcServer(service(), Config(), Access(), [f"unix://{path}"])
        await door.open()
        shutil.rmtree(path.parent)
        path.parent.symlink_to("/proc")  # where nothing can be made
        while not logs:
            await asyncio.sleep(0.01)
        path.parent.unlink()
        while len(logs) < 2:
            await asyncio.sleep(0.01)
        assert path.is_socket()
        await door.drain(0)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert [log["log_level"] for log in logs] == ["error", "warning"]
