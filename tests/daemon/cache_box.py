"""A driver, a worker and a cache on the test's own event loop; the worker does what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.config.cache import CacheConfig
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.cache.front import ResultCache
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.wire import ALIGNMENT, FrameReader, Tensors, encode, pack_tensors, unpack_tensors
from workers.link import LINK_LIMITS, ModelCard, offer_header, unpack_items
from workers.model import CacheRules, Padding

SECONDS = 1_000_000_000
SIGNATURE = Signature(
    (TensorSpec("x", "float32", (None,)),), (TensorSpec("y", "float32", (None,)),), True
)


class Worker(asyncio.BufferedProtocol):
    """Doubles its input, or holds or fails what it gets."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.reader = FrameReader(LINK_LIMITS)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.box.worker = self
        card = {**asdict(self.box.card), "signature": asdict(SIGNATURE)}
        self.say({"t": "catalog", "models": [card], "problems": []})
        self.say(offer_header(self.box.offer))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for header, body in self.reader.advance(nbytes):
            if header["t"] == "run":
                items = unpack_items(header["in"], header["count"], body)
                self.box.runs.append((header["id"], items))
                if not self.box.holds:
                    self.finish()

    def say(self, header: dict[str, Any], buffers: Any = ()) -> None:
        self.transport.write(b"".join(encode(header, buffers)))

    def finish(self, error: str | None = None) -> None:
        """Ends the oldest run that was held."""
        run_id, items = self.box.runs.pop(0)
        self.box.ran += len(items)
        out: list[Any] = []
        buffers: list[Any] = []
        for item in items if error is None else ():
            specs, parts = pack_tensors({"y": 2 * item["x"]})
            out.append([specs, 1])
            buffers += [*parts, bytes(-sum(map(len, parts)) % ALIGNMENT)]
        errors = [] if error is None else [[i, error] for i in range(len(items))]
        self.say(
            {"t": "done", "id": run_id, "execute_ns": 1000, "out": out, "errors": errors}, buffers
        )


class Box:
    """What a test asks, and looks into."""

    def __init__(
        self, rules: CacheRules | None, digest: str, run_ms: float, pad: tuple[Padding, ...]
    ) -> None:
        self.card = ModelCard("m", "", SIGNATURE, ("v", "w"), 8, digest, rules, pad=pad)
        ladder = {1: (int(run_ms * 1e6),), 8: (int(run_ms * 1e6),)}
        self.offer = Offer("m", "v", "onnxruntime", ladder)
        self.runs: list[tuple[int, list[Tensors]]] = []
        self.ran = 0
        self.holds = False
        self.driver: Driver
        self.cache: ResultCache
        self.worker: Worker

    def ask(self, x: Any, **how: Any) -> Asked:
        """One request, as a door would submit it."""
        return self.ask_all([x], **how)[0]

    def ask_all(self, xs: list[Any], **how: Any) -> list[Asked]:
        """Several in one call."""
        asked = [Asked(self, np.asarray(x, np.float32), **how) for x in xs]
        for one, id_ in zip(
            asked, self.cache.submit([one.submission for one in asked]), strict=True
        ):
            one.id = id_
        return asked

    async def until(self, true: Callable[[], object]) -> None:
        """Waits for something to become true."""

        async def wait() -> None:
            while not true():
                await asyncio.sleep(0.002)

        await asyncio.wait_for(wait(), 30)

    async def until_connected(self) -> None:
        await self.until(lambda: self.redis["open"])

    @property
    def counts(self) -> dict[str, Any]:
        return self.cache.status()

    @property
    def redis(self) -> dict[str, Any]:
        found: dict[str, Any] = self.counts["redis"]
        return found


class Asked:
    """A request and its answers, of which there must be one."""

    def __init__(
        self,
        box: Box,
        x: Any,
        deadline_ms: float = 20_000,
        priority: int = 3,
        weight: float = 1.0,
        late: bool = False,
        variant: str | None = None,
        exact: bool = False,
        local: bool = False,
    ) -> None:
        self.id = 0
        self.x = x
        self.answers: list[Answer] = []
        self.done = asyncio.Event()
        specs, buffers = pack_tensors({"x": x})
        self.submission = Submission(
            RequestClass("m", variant, (x.shape,), exact=exact, local=local),
            specs,
            memoryview(b"".join(buffers)),
            box.driver.clock_ns() + int(deadline_ms * 1e6),
            priority,
            weight,
            late,
            self._take,
        )

    def _take(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.done.set()

    async def answer(self) -> Answer:
        """The one answer."""
        await asyncio.wait_for(self.done.wait(), 30)
        (answer,) = self.answers
        return answer

    async def good(self) -> Answer:
        """The one answer, which must be right."""
        answer = await self.answer()
        assert answer.outcome is Outcome.COMPLETED, answer.reason
        assert answer.outputs is not None
        assert answer.offer is not None
        assert answer.offer.runtime == "onnxruntime"
        np.testing.assert_array_equal(unpack_tensors(*answer.outputs)["y"], 2 * self.x)
        return answer

    async def target(self) -> str:
        """Where the one right answer came from."""
        return (await self.good()).target


@contextlib.asynccontextmanager
async def a_box(
    rules: CacheRules | None = CacheRules(),  # noqa: B008
    digest: str = "d1",
    run_ms: float = 1.0,
    pad: tuple[Padding, ...] = (),
    **settings: Any,
) -> AsyncIterator[Box]:
    """A box with one model `m` that gives `y = 2 x`, and a cache in front of it."""
    box = Box(rules, digest, run_ms, pad)
    with tempfile.TemporaryDirectory(prefix="lx") as folder:
        path = Path(folder) / "w"
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Worker(box), str(path))
        box.driver = Driver()
        # A slow machine's false alarms are no part of what is tested.
        config = CacheConfig(**{"timeout_ms": 2000.0, **settings})
        box.cache = ResultCache(box.driver, config)
        box.cache.open()
        box.driver.add_device("cpu:0", path)
        try:
            await box.until(lambda: box.driver.catalog.offers)
            yield box
        finally:
            await box.cache.close()
            await box.driver.close()
            box.worker.transport.close()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(0)
