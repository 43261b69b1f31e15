"""Boxes in one process: real drivers, native doors and neighbours; only devices are made up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scheduler.address import Address
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.signature import Signature, TensorSpec
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.driver import Driver
from scheduler.daemon.link import LinkListener
from scheduler.daemon.neighbours.neighbours import Neighbours, SiteOptions
from scheduler.daemon.submission import Answer, Submission
from scheduler.ingress.native import DoorRules, Intake, NativeDoor
from scheduler.policy_loading import FALLBACK, NamedPolicy
from scheduler.tenants import OWNER, Access, hash_of
from scheduler.wire import FrameLimits
from tests.neighbours.virtual_loop import VirtualLoop
from workers.link import ModelCard
from workers.model import CacheRules

MS = 1_000_000
TOKEN = "lx_0123456789abcdef"
ACCESS = Access([OWNER.model_copy(update={"tokens": (hash_of(TOKEN),)})])
X = [["x", "float32", [4]]]

WIDE = 300_000
"""How many numbers the model `wide` takes, and gives back; others take four, and `free` may give
any number."""

BROAD = 150_000
"""The same of the model `broad`."""


def width_of(model: str) -> int:
    return {"wide": WIDE, "broad": BROAD}.get(model, 4)


def card(model: str, digest: str = "d") -> ModelCard:
    x = (TensorSpec("x", "float32", (width_of(model),)),)
    y = (TensorSpec("x", "float32", (None,)),) if model == "free" else x
    return ModelCard(model, "", Signature(x, y, True), ("v",), 8, digest, CacheRules())


class MadeUpDevice:
    """A device that takes `base_ms + item_ms * n` for a batch of n, and answers with its input.

    Where `says` is not None, it describes what it answers with so instead; where `gives` is not, it
    answers with so many numbers.
    """

    def __init__(
        self, device_id: str, models: dict[str, str], listener: LinkListener, loop: VirtualLoop
    ) -> None:
        self.device_id = device_id
        self.models = models
        self.listener = listener
        self.loop = loop
        self.base_ms, self.item_ms = 20.0, 5.0
        self.energy_uj: dict[int, int] = {}
        self.ran = self.measured = 0
        self.says: Any = None
        self.gives: int | None = None
        self._free_s = 0.0
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def spec(self) -> TargetSpec:
        ladder = {
            n: tuple(int((self.base_ms + self.item_ms * n) * MS * f) for f in (0.98, 1, 1.02))
            for n in (1, 2, 4, 8)
        }
        offers = tuple(
            Offer(model, "v", "made-up", ladder, energy_uj=self.energy_uj) for model in self.models
        )
        return TargetSpec(self.device_id, offers)

    async def keep_connected(self) -> None:
        cards = [card(model, digest) for model, digest in self.models.items()]
        self.listener.on_catalog(self.device_id, cards, [])
        if self.models:
            self.listener.on_up(self.spec())
        await asyncio.Event().wait()

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        seconds = (self.base_ms + self.item_ms * len(batch)) / 1e3
        self._free_s = max(self.loop.time(), self._free_s) + seconds
        said = self.says
        bodies = [(s.specs if said is None else said, memoryview(bytes(s.body))) for s in batch]
        if (width := self.gives) is not None:
            bodies = [([["x", "float32", [width]]], memoryview(bytes(4 * width)))] * len(batch)
        self._timers[dispatch.run_id] = self.loop.call_at(
            self._free_s, self._done, dispatch.run_id, bodies, int(seconds * 1e9)
        )

    def _done(self, run_id: int, bodies: list[Any], execute_ns: int) -> None:
        del self._timers[run_id]
        self.ran += len(bodies)
        self.listener.on_done(run_id, bodies, execute_ns)

    def cancel(self, run_id: int) -> None:
        pass

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        self.measured += 1

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def describe(self) -> dict[str, Any]:
        return {}


_NARROW_BYTES = 20_000
_PACKET_BYTES = 4_096


class Cable:
    """What lies between a box's door and the others; while it is cut, nobody is told anything.

    While it is narrow, a connection that brings much at once gets stuck. Where it has a bandwidth,
    all connections share that, in each direction apart.
    """

    def __init__(self) -> None:
        self.cut = False
        self.narrow = False
        self.mbps: float | None = None
        self._free_s: dict[bool, float] = {}
        self._mended = asyncio.Event()
        self._widened = asyncio.Event()
        self._carriers: set[asyncio.Task[None]] = set()
        self.stuck: list[asyncio.Task[Any]] = []

    async def lay(self, port: int) -> int:
        """Carries what comes to the port that it returns to that one."""
        self._port = port
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def pull(self) -> None:
        self.cut = True
        self._mended.clear()

    def mend(self) -> None:
        self.cut = False
        self._mended.set()

    def widen(self) -> None:
        """Carries on what got stuck while it was narrow."""
        self._widened.set()

    def break_stuck(self) -> None:
        """Breaks the connections of what got stuck."""
        for carrier in self.stuck:
            carrier.cancel()

    def remove(self) -> None:
        self._server.close()
        for carrier in self._carriers:
            carrier.cancel()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await self._whole()
        try:
            far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the box has closed its door
            back.close()
            return
        for is_there, ends in ((True, (near, forth)), (False, (far, back))):
            carrier = asyncio.get_running_loop().create_task(self._carry(is_there, *ends))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    async def _whole(self) -> None:
        if self.cut:
            await self._mended.wait()

    async def _carry(
        self, is_there: bool, near: asyncio.StreamReader, far: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await near.read(1 << 16 if self.mbps is None else _PACKET_BYTES):
                await self._whole()
                if self.mbps is not None:
                    await self._pass(is_there, len(data))
                if self.narrow and len(data) > _NARROW_BYTES:
                    self.stuck += filter(None, [asyncio.current_task()])
                    await self._widened.wait()
                far.write(data)
        finally:
            far.close()

    async def _pass(self, is_there: bool, size: int) -> None:
        assert self.mbps is not None
        now_s = asyncio.get_running_loop().time()
        free_s = max(now_s, self._free_s.get(is_there, 0.0)) + size / (self.mbps * 125_000)
        self._free_s[is_there] = free_s
        await asyncio.sleep(free_s - now_s)


class Box:
    """One box, with what came of the requests that entered there."""

    def __init__(
        self,
        name: str,
        models: dict[str, str] | None = None,
        policy: NamedPolicy = FALLBACK,
        token: str = TOKEN,
        site: str = "line-3",
        body_bytes: int = 1_000,
        cost_per_kwh: float = 0.0,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.name = name
        self.join: list[Address] = []
        self.joins_itself = False
        self.token, self.site, self.body_bytes = token, site, body_bytes
        self.version = "1.2.3"
        self.advertise: Address | None = None
        self.cable = Cable()
        # Monotonic clocks of two machines never agree.
        offset_ns = random.Random(name).randrange(10**15)
        self.driver = Driver(
            policy, clock_ns=lambda: loop.time_ns() + offset_ns, cost_per_kwh=cost_per_kwh
        )
        self.intake: Intake = self.driver
        rules = DoorRules(site, ACCESS, FrameLimits(body_bytes=body_bytes), 64, 10**12)
        self.door = NativeDoor(self.driver, rules, self.driver.status)
        models = {"m": "d"} if models is None else models
        self.device = MadeUpDevice("cpu:0", models, self.driver, loop)
        self.driver.add_target("cpu:0", self.device)
        self.endings: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.asked = 0
        self.last: Answer | None = None

    def join_at(self, boxes: Sequence[Box]) -> None:
        self.join = [Address("tcp", host="127.0.0.1", port=box.outside) for box in boxes]

    async def start(self) -> None:
        self.server = await self.loop.create_server(self.door, "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]
        self.outside = await self.cable.lay(self.port)
        if self.joins_itself:
            self.join_at([self])
        door = Address("tcp", host="127.0.0.1", port=self.outside)
        options = SiteOptions(
            self.site, self.name, tuple(self.join), self.advertise, door, self.token, self.version
        )
        is_loaded = self.door.admission.is_loaded
        self.neighbours = self.door.neighbours = Neighbours(self.driver, options, is_loaded)
        self.neighbours.start()

    async def start_again(self) -> None:
        """A new life of a box that crashed, elsewhere but with the same name and device."""
        ran, join = self.device.ran, self.join
        fresh = Box(self.name, self.device.models, body_bytes=self.body_bytes)
        fresh.endings, fresh.places, fresh.asked = self.endings, self.places, self.asked
        self.__dict__.update(fresh.__dict__)
        self.join, self.device.ran = join, ran
        await self.start()

    async def stop(self) -> None:
        """Drains, as a box does on SIGTERM."""
        self.neighbours.leave()
        self.server.close()
        self.door.stop_admitting()
        await self.driver.drain(1)
        await self.crash()

    async def crash(self) -> None:
        """Is gone from one moment to the next, as far as others can tell."""
        self.cable.remove()
        self.server.close()
        self.door.close()
        await self.neighbours.close()
        await self.driver.close()

    def ask(
        self, budget_ms: float, model: str = "m", local: bool = False, late: bool = False
    ) -> None:
        """One request of a caller of this box."""
        self.asked += 1
        answers: list[Answer] = []

        def reply(answer: Answer) -> None:
            answers.append(answer)
            self.last = answer
            assert len(answers) == 1
            self.endings[answer.outcome.value] += 1
            if answer.outputs is not None:
                self.places[answer.target] += 1

        width = width_of(model)
        kind = RequestClass(model, None, ((width,),), local=local)
        deadline_ns = self.driver.clock_ns() + int(budget_ms * MS)
        body, specs = memoryview(bytes(4 * width)), [["x", "float32", [width]]]
        self.intake.submit(
            [Submission(kind, specs, body, deadline_ns, 3, 1.0, late, reply, int(budget_ms * MS))]
        )

    async def load(self, per_s: float, seconds: float, budget_ms: float, seed: int = 1) -> None:
        """Requests by chance, so many per second on average, and until all have ended."""
        chance = random.Random(seed)
        end_s = self.loop.time() + seconds
        while self.loop.time() < end_s:
            await asyncio.sleep(chance.expovariate(per_s))
            self.ask(budget_ms)
        await asyncio.sleep(2 * budget_ms / 1e3)

    def states(self) -> dict[str, str]:
        return {m["name"]: m["state"] for m in self.neighbours.describe()["members"]}

    def versions(self) -> dict[str, str | None]:
        return {m["name"]: m["version"] for m in self.neighbours.describe()["members"]}

    @property
    def on_time(self) -> float:
        return self.endings["completed"] / max(1, self.asked)


async def until(holds: Any, seconds: float = 20) -> None:
    """Waits until something is so.

    Raises:
        AssertionError: It is not in time.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    while not holds():
        assert loop.time() < end_s, "it does not come about"
        await asyncio.sleep(0.02)
