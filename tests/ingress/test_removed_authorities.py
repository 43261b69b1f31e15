"""Open connections, once an authority that may have let their clients in is removed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import uvloop
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from benchmarks.ports import free_port
from scheduler import AsyncClient, LaxityError
from scheduler.config.box import Config
from scheduler.config.doors import TlsConfig
from scheduler.daemon.driver import Driver
from scheduler.ingress.certificates import DoorContext
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.http.server import HttpServer
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.tenants import Access
from scheduler.wire import FrameLimits
from tests.waiting import PATIENCE_S

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Files:
    """A box's certificates, and two authorities that sign those of clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authorities = {"stays": trustme.CA(), "goes": trustme.CA()}
        own = self.authorities["stays"].issue_cert("127.0.0.1")
        own.private_key_pem.write_to_path(folder / "key.pem")
        own.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        self.authorities["stays"].cert_pem.write_to_path(folder / "own-ca.pem")
        for name, authority in self.authorities.items():
            pair = authority.issue_cert(f"{name}.example")
            pair.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
            pair.private_key_pem.write_to_path(folder / f"{name}.key")
            pair.cert_chain_pems[0].write_to_path(folder / f"{name}.cert")
        self.trust("stays", "goes")
        named = {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
        self.tls = TlsConfig.model_validate(named, context={"base": folder})

    def trust(self, *names: str) -> None:
        blobs = [self.authorities[name].cert_pem.bytes() for name in names]
        (self.folder / "ca.pem").write_bytes(b"# who may sign\n" + b"\n".join(blobs))

    def context(self, name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.folder / "own-ca.pem")
        context.load_cert_chain(self.folder / f"{name}.pem")
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def run(work: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(work, PATIENCE_S))


def service() -> Service:
    """What a door needs of a box that is away."""
    defaults = Defaults.of(Config().doors, Config().limits)
    return Service(Box("unix:///none"), SharedMemory(None), defaults, "laxity", 256, "info", 10**6)


def test_at_the_native_door_a_client_has_to_show_its_certificate_again(files: Files) -> None:
    async def talk() -> None:
        driver = Driver()
        rules = DoorRules("s", Access(), FrameLimits(), 8, 10**12)
        door = NativeDoor(driver, rules, driver.status)
        door.tls = tls = DoorContext(files.tls)
        server = await asyncio.get_running_loop().create_server(door, "127.0.0.1", 0, ssl=tls)
        url = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ca, folder = files.folder / "own-ca.pem", files.folder
        clients = {
            name: AsyncClient(url, ca=ca, cert=folder / f"{name}.cert", key=folder / f"{name}.key")
            for name in ("stays", "goes")
        }

        def again(*names: str) -> None:
            files.trust(*names)
            tls.read_again(files.tls)
            door.take_access(Access())

        for client in clients.values():
            await client.status()
        before = set(door._connections)
        again("goes", "stays")
        assert set(door._connections) == before, "the same ones in another order"
        again("stays")
        while before & door._connections:
            await asyncio.sleep(0.01)
        await clients["stays"].status()
        after = set(door._connections)
        with pytest.raises(LaxityError):
            await asyncio.wait_for(clients["goes"].connect(2), 10)
        again("stays", "goes")
        assert after <= door._connections, "who was let in by the one that stays"
        await clients["goes"].status()
        for client in clients.values():
            await client.close()
        server.close()
        door.close()
        await driver.close()

    run(talk())


def test_at_the_http_door_the_answer_under_way_is_the_last(files: Files) -> None:
    async def talk() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = Config(tls=files.tls)
        door = HttpServer(service(), config, Access(), [(listening, f"tls://127.0.0.1:{port}")])
        await door.open()

        async def connected(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, ssl=files.context(name))

        async def asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write(LIVE)
            return await reader.readuntil(b"\r\n\r\n")

        idle, busy = await connected("goes"), await connected("stays")
        for each in (idle, busy):
            assert b" 200 OK" in await asks(*each)
        busy[1].write(LIVE[:20])
        while not any(connection._incoming.busy for connection in door._door._connections):
            await asyncio.sleep(0.01)
        files.trust("stays")
        door.reload(Access(), files.tls)
        assert await idle[0].read() in (b"", b'{"live":true}')
        busy[1].write(LIVE[20:] + LIVE)
        said = await busy[0].read()
        assert said.count(b" 200 OK") == 1
        assert b"connection: close" in said.lower()
        last = await connected("stays")
        assert b" 200 OK" in await asks(*last)
        with suppress(ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            await asks(*await connected("goes"))
            raise AssertionError("it was let in")
        for _, writer in (idle, busy, last):
            writer.close()
        await door.drain(0)

    run(talk())


def test_at_the_grpc_door_a_client_has_to_show_its_certificate_again(files: Files) -> None:
    async def talk() -> None:
        port = free_port()
        config = Config(tls=files.tls)
        door = GrpcServer(service(), config, Access(), [f"tls://127.0.0.1:{port}"])
        await door.open()
        folder = files.folder

        def channel(name: str) -> grpc.aio.Channel:
            credentials = grpc.ssl_channel_credentials(
                (folder / "own-ca.pem").read_bytes(),
                (folder / f"{name}.key").read_bytes(),
                (folder / f"{name}.cert").read_bytes(),
            )
            return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)

        channels = {name: channel(name) for name in ("stays", "goes")}

        async def is_live(name: str) -> bool:
            stub = stubs.GRPCInferenceServiceStub(channels[name])
            try:
                return bool((await stub.ServerLive(pb.ServerLiveRequest())).live)
            except grpc.aio.AioRpcError:
                return False

        assert [await is_live(name) for name in channels] == [True, True]
        files.trust("stays")
        door.reload(Access(), files.tls)
        while await is_live("goes"):
            await asyncio.sleep(0.01)
        while not await is_live("stays"):
            await asyncio.sleep(0.01)
        assert not await is_live("goes")
        for each in channels.values():
            await each.close()
        await door.drain(0)

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
