"""A box with one worker, whose models take and give tensors of any size."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scheduler import AsyncClient
from scheduler.client.lent_memory import LentMemory
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.daemon.driver import Driver
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.shared_pages import LEAST_BYTES
from scheduler.tenants import Access
from scheduler.wire import FrameLimits, FrameReader, Header, Tensors, encode
from tests.waiting import PATIENCE_S
from workers.link import offer_header
from workers.link_server import LinkServer

LARGE = LEAST_BYTES // 4
MINUTE_MS = 60_000
X = {"name": "x", "dtype": "float32", "shape": [None]}
CARD = {
    "name": "ends",
    "description": "",
    "signature": {"inputs": [X], "outputs": [{**X, "name": "y", "shape": [2]}], "batched": True},
    "variants": ["v"],
    "max_batch": 4,
    "digest": "d",
    "cache": None,
}


SAME = {**CARD, "name": "same"}
SAME["signature"] = {"inputs": [X], "outputs": [{**X, "name": "y"}], "batched": True}


class Host:
    """Its model `ends` returns the first and the last value, `same` all, when it may."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.batches: list[list[bool]] = []

    def run(self, model: str, _variant: str, items: list[Tensors]) -> list[Tensors]:
        # What was sent to the worker is its own, so it could write to it.
        self.batches.append([not item["x"].flags.writeable for item in items])
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        return [{"y": item["x"][[0, -1]] if model == "ends" else item["x"]} for item in items]

    @property
    def shared(self) -> list[bool]:
        return [is_shared for batch in self.batches for is_shared in batch]


@dataclass
class Box:
    folder: Path
    host: Host
    driver: Driver
    door: NativeDoor
    server: LinkServer
    lent: list[LentMemory] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/s"

    def taken(self) -> int:
        return sum(len(lent._blocks._taken) for lent in self.lent)


@asynccontextmanager
async def a_box(folder: Path, size: int = 10**7, maps: bool = True) -> AsyncIterator[Box]:
    host = Host()
    server = LinkServer(folder / "w", host, maps=maps)
    server.say("catalog", {"t": "catalog", "models": [CARD, SAME], "problems": []})
    for model in ("ends", "same"):
        server.say(model, offer_header(Offer(model, "v", "r", {1: (1000,), 4: (1000,)})))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    driver = Driver(limits=Limits(bytes=size), shared=SharedBodies(size))
    rules = DoorRules("s", Access(), FrameLimits(body_bytes=size), 8, 10**12)
    door = NativeDoor(driver, rules, driver.status)
    driver.add_device("cpu:0", folder / "w")
    loop = asyncio.get_running_loop()
    listening = await loop.create_unix_server(door, f"{folder}/s")
    await until(lambda: len(driver.catalog.offers) == 2)
    try:
        yield Box(folder, host, driver, door, server)
    finally:
        host.go.set()
        listening.close()
        door.close()
        await driver.close()
        await until(lambda: not door._connections)


async def until(true: Callable[[], object]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE_S)


def vector(size: int, value: float = 1.0) -> dict[str, Any]:
    return {"x": np.linspace(value, value + 1, size, dtype=np.float32)}


async def ends(client: AsyncClient, size: int, value: float = 1.0) -> None:
    """Asks, and checks the answer."""
    result = await client.infer("ends", vector(size, value), deadline_ms=MINUTE_MS)
    assert result["y"].tolist() == [value, value + 1]


async def same(client: AsyncClient, size: int, value: float = 1.0) -> Any:
    """Asks for a large answer, and checks it."""
    sent = vector(size, value)
    result = await client.infer("same", sent, deadline_ms=MINUTE_MS)
    assert np.array_equal(result["y"], sent["x"])
    return result


class Raw:
    """A client that writes any messages."""

    def __init__(self, path: str) -> None:
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.settimeout(PATIENCE_S)
        self.peer.connect(path)
        self._reader = FrameReader(FrameLimits())
        self._heard: list[Header] = []

    def ask(self, header: Header, body: bytes = b"") -> None:
        self.peer.sendall(b"".join(encode(header, (body,) if body else ())))

    def hear(self) -> Header:
        while not self._heard:
            count = self.peer.recv_into(self._reader.get_buffer())
            assert count, "the box hung up"
            self._heard += [header for header, _ in self._reader.advance(count)]
        return self._heard.pop(0)
