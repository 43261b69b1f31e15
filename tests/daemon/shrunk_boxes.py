"""Two boxes in one process with a slow link between them; the far one keeps what it was given."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ports import free_port
from replay.links import LinkEmulator, OneWay
from scheduler.address import Address
from scheduler.config.box import Config
from scheduler.config.cloud import CloudConfig
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.signature import Signature, TensorSpec
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.cloud.dialing import cloud_link, endpoint_of
from scheduler.daemon.cloud.endpoint import Endpoint
from scheduler.daemon.driver import Driver
from scheduler.daemon.link import LinkListener
from scheduler.daemon.neighbours.neighbours import Neighbours, SiteOptions
from scheduler.daemon.submission import Answer, Submission
from scheduler.ingress.grpc.server import GrpcServer
from scheduler.ingress.http.server import HttpServer
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.oip.box import Box
from scheduler.ingress.oip.deadlines import Defaults
from scheduler.ingress.oip.service import Service
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.policy_loading import NamedPolicy
from scheduler.tenants import OWNER, Access, hash_of
from scheduler.wire import FrameLimits, pack_tensors, unpack_tensors
from tests.encodings.images import photograph
from workers.link import ModelCard
from workers.model import Encoding, InputForms

TOKEN = "lx_0123456789abcdef"
ACCESS = Access([OWNER.model_copy(update={"tokens": (hash_of(TOKEN),)})])
MBPS = 0.8
SHAPE = (3, 80, 80)
"""76,800 bytes as they are: 0.77 s on the way, 0.38 s as float16, 0.05 s as JPEG."""

FOR_HALF_MS, FOR_JPEG_MS = 640.0, 330.0
"""Deadlines that leave time for one and not for the form before."""

FLOAT16 = Encoding("float16")
JPEG = Encoding("jpeg", 90, "NCHW", (1 / 255,), (0.0,))
BOTH = (InputForms("image", (FLOAT16, JPEG)),)
PHOTO = (photograph(80, 80).transpose(2, 0, 1) / np.float32(255)).astype(np.float32)


def card(shrink: tuple[InputForms, ...] = BOTH) -> ModelCard:
    image = TensorSpec("image", "float32", SHAPE)
    mean = TensorSpec("mean", "float32", (3,))
    signature = Signature((image,), (mean,), True)
    return ModelCard("m", "", signature, ("v",), 4, "digest", None, shrink)


class Means:
    """A device whose model gives the mean of each channel; it keeps all that it was given."""

    def __init__(self, listener: LinkListener, known: ModelCard) -> None:
        self.given: list[NDArray[np.float32]] = []
        self.kinds: list[RequestClass] = []
        self._listener = listener
        self._card = known

    async def keep_connected(self) -> None:
        self._listener.on_catalog("cpu:0", [self._card], [])
        ladder = dict.fromkeys((1, 2, 4), (2000000,) * 3)
        self._listener.on_up(TargetSpec("cpu:0", (Offer("m", "v", "made-up", ladder),)))
        await asyncio.Event().wait()

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        outputs: list[Any] = []
        for submission in batch:
            image = unpack_tensors(submission.specs, submission.body)["image"]
            self.given.append(image)
            self.kinds.append(submission.kind)
            specs, buffers = pack_tensors({"mean": image.mean(axis=(1, 2))})
            outputs.append((specs, memoryview(b"".join(buffers))))
        asyncio.get_running_loop().call_later(
            0.002, self._listener.on_done, dispatch.run_id, outputs, 2_000_000
        )

    def cancel(self, run_id: int) -> None:
        pass

    def close(self) -> None:
        pass

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}


class Pair:
    """The near box, whose only way to run anything is the far one."""

    def __init__(self, near: Driver, far: Driver, device: Means) -> None:
        self.near, self.far, self.device = near, far, device

    async def ask(
        self, image: NDArray[np.float32] = PHOTO, deadline_ms: float = 8_000, exact: bool = False
    ) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        specs, buffers = pack_tensors({"image": image})
        submission = Submission(
            RequestClass("m", None, (image.shape,), exact=exact),
            specs,
            memoryview(b"".join(buffers)),
            self.near.clock_ns() + int(deadline_ms * 1e6),
            3,
            1.0,
            False,
            future.set_result,
            int(deadline_ms * 1e6),
        )
        self.near.submit([submission])
        return await future

    async def ask_until_sent_as(self, form: str, deadline_ms: float) -> Answer:
        """Again where a busy machine makes the link look different for a moment."""
        for _ in range(20):
            answer = await self.ask(deadline_ms=deadline_ms)
            if answer.notes == {"shrunk": f"image as {form} for far"}:
                return answer
            await asyncio.sleep(0.4)  # what was held up and learned is dropped by the next report
        raise AssertionError(f"{answer} {self.target}")

    async def settle(self) -> None:
        """Lets a large message tell the bandwidth, and the scheduler hear of it."""
        assert (await self.ask()).outputs is not None
        for _ in range(500):
            if self.target["transfer_ns"][1]:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # reports make a peer's target anew once nothing is under way

    @property
    def target(self) -> dict[str, Any]:
        return next(t for t in self.near.status()["targets"] if t["id"] == "far")

    async def until_up(self) -> None:
        for _ in range(2_000):
            if self.target["up"]:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not up: {self.near.status()}")


def mean_of(answer: Answer) -> NDArray[np.float32]:
    assert answer.outputs is not None, answer
    return np.frombuffer(answer.outputs[1], np.float32)


@asynccontextmanager
async def _far_box(known: ModelCard) -> AsyncIterator[tuple[Driver, NativeDoor, Means]]:
    driver = Driver(NamedPolicy("edf", {}))
    rules = DoorRules("s", ACCESS, FrameLimits(), 64, 10**12)
    door = NativeDoor(driver, rules, lambda: {**driver.status(), "draining": False})
    device = Means(driver, known)
    driver.add_target("cpu:0", device)
    try:
        yield driver, door, device
        driver.core.validate()
    finally:
        door.close()
        await driver.close()


def _slow(port: int) -> LinkEmulator:
    way = OneWay(delay_ms=2, mbps=MBPS)
    return LinkEmulator("127.0.0.1:0", f"127.0.0.1:{port}", up=way, down=way)


@dataclass
class Doors:
    """All doors of one box, in this process."""

    driver: Driver
    door: NativeDoor
    device: Means
    service: Service
    native: str
    endpoints: dict[str, Endpoint]


@asynccontextmanager
async def doors(folder: Path, known: ModelCard) -> AsyncIterator[Doors]:
    """A box with every door open, and somebody at those of the Open Inference Protocol."""
    async with AsyncExitStack() as stack:
        driver, door, device = await stack.enter_async_context(_far_box(known))
        service = await stack.enter_async_context(_service(folder, door))
        native = folder / "native.sock"
        server = await asyncio.get_running_loop().create_unix_server(door, str(native))
        stack.callback(server.close)
        endpoints = {}
        for scheme in ("http", "grpc"):
            port = await stack.enter_async_context(_outer_door(scheme, service))
            url = f"{scheme}://127.0.0.1:{port}"
            said = {"name": "far", "url": url, "encoding": "binary"}
            config = CloudConfig.model_validate(said)
            endpoints[scheme] = endpoint_of(config)
            stack.push_async_callback(endpoints[scheme].close)
        while not driver.core.targets:
            await asyncio.sleep(0.005)
        yield Doors(driver, door, device, service, f"unix://{native}", endpoints)


@asynccontextmanager
async def _service(folder: Path, door: NativeDoor) -> AsyncIterator[Service]:
    path = folder / "doors.sock"
    inner = await asyncio.get_running_loop().create_unix_server(door.for_doors, str(path))
    box = Box(f"unix://{path}")
    try:
        defaults = Defaults(10_000.0, {})
        yield Service(box, SharedMemory(None), defaults, "laxity", 8, "info", 10**6)
    finally:
        box.close()
        inner.close()


@asynccontextmanager
async def cloud_pair(
    scheme: str, folder: Path, near: ModelCard, far: ModelCard
) -> AsyncIterator[Pair]:
    """A box with a cloud that is another box's door of the Open Inference Protocol."""
    async with AsyncExitStack() as stack:
        far_driver, door, device = await stack.enter_async_context(_far_box(far))
        service = await stack.enter_async_context(_service(folder, door))
        port = await stack.enter_async_context(_outer_door(scheme, service))
        link = await stack.enter_async_context(_slow(port))
        driver = Driver(NamedPolicy("edf", {}))
        stack.push_async_callback(driver.close)
        driver.catalog.learn("cpu:0", [near], [])
        config = CloudConfig.model_validate(
            {
                "name": "far",
                "url": f"{scheme}://{link.address.partition('://')[2]}",
                "expected_ms": 5.0,
                "bandwidth_mbps": MBPS,
            }
        )
        driver.add_target("far", cloud_link(config, driver, folder))
        pair = Pair(driver, far_driver, device)
        await pair.until_up()
        yield pair
        driver.core.validate()


@asynccontextmanager
async def _outer_door(scheme: str, service: Service) -> AsyncIterator[int]:
    port = free_port()  # gRPC does not tell which one it was given
    config = Config.model_validate({})
    if scheme == "http":
        listening = socket.create_server(("127.0.0.1", port))
        server: Any = HttpServer(service, config, Access(), [(listening, "")])
    else:
        server = GrpcServer(service, config, Access(), [f"tcp://127.0.0.1:{port}"])
    await server.open()
    try:
        yield port
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def site_pair(near: ModelCard | None, far: ModelCard) -> AsyncIterator[Pair]:
    """Two boxes of a site, of which the near one has no device."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        far_driver, door, device = await stack.enter_async_context(_far_box(far))
        server = await loop.create_server(door, "127.0.0.1", 0)
        stack.callback(server.close)
        link = await stack.enter_async_context(_slow(server.sockets[0].getsockname()[1]))
        address = Address("tcp", host="127.0.0.1", port=int(link.address.rpartition(":")[2]))
        options = SiteOptions("s", "far", advertise=address, token=TOKEN)
        door.neighbours = Neighbours(far_driver, options)
        door.neighbours.start()
        stack.push_async_callback(door.neighbours.close)
        driver = Driver(NamedPolicy("edf", {}))
        stack.push_async_callback(driver.close)
        if near is not None:
            driver.catalog.learn("cpu:0", [near], [])
        neighbours = Neighbours(
            driver, replace(options, box="near", advertise=None, join=(address,))
        )
        neighbours.start()
        stack.push_async_callback(neighbours.close)
        pair = Pair(driver, far_driver, device)
        for _ in range(2_000):
            if driver.has_target("far"):
                break
            await asyncio.sleep(0.01)
        await pair.until_up()
        await asyncio.sleep(0.7)  # some pings, which tell the round trip
        yield pair
        driver.core.validate()
