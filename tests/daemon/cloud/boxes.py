from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.config.cloud import CloudConfig
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.cloud.dialing import cloud_link
from scheduler.daemon.cloud.link import CloudLink
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.policy_loading import NamedPolicy
from scheduler.wire import pack_tensors
from workers.link import ModelCard

Value = float | NDArray[np.float32]


class Box:
    """A driver with a cloud as its only target, and what its requests came to."""

    def __init__(self, driver: Driver, link: CloudLink):
        self.driver = driver
        self.link = link

    async def ask(self, value: Value = 1.0, deadline_ms: float = 20_000, **more: Any) -> Answer:
        return await self.post(value, deadline_ms, **more)[1]

    def post(
        self,
        value: Value = 1.0,
        deadline_ms: float = 20_000,
        accept_late: bool = False,
        model: str = "double",
        tensor: str = "x",
    ) -> tuple[int, asyncio.Future[Answer]]:
        x = np.full(4, value, np.float32) if isinstance(value, float) else value
        return self.submit(model, {tensor: x}, deadline_ms, accept_late)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        deadline_ms: float,
        accept_late: bool = False,
    ) -> tuple[int, asyncio.Future[Answer]]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        specs, buffers = pack_tensors(inputs)
        submission = Submission(
            RequestClass(model, None, tuple(tuple(shape) for _, _, shape in specs)),
            specs,
            memoryview(b"".join(buffers)),
            self.driver.clock_ns() + int(deadline_ms * 1e6),
            3,
            1.0,
            accept_late,
            future.set_result,
        )
        [request_id] = self.driver.submit([submission])
        return request_id, future

    async def until(self, reached: Callable[[], Any], seconds: float = 10.0) -> None:
        """Waits for what must become true."""
        for _ in range(int(seconds * 200)):
            if reached():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not reached: {self.link.describe()}")

    @property
    def is_up(self) -> bool:
        target = self.driver.core.targets.get("far")
        return target is not None and target.up

    @property
    def breaker(self) -> str:
        return str(self.link.describe()["breaker"]["state"])


def floats(answer: Answer) -> NDArray[np.float32]:
    assert answer.outputs is not None
    return np.frombuffer(answer.outputs[1], np.float32)


def numbers(answer: Answer) -> list[float]:
    assert answer.outcome is Outcome.COMPLETED, answer
    return list(floats(answer))


CARD = ModelCard(
    "double",
    "",
    Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),), True),
    ("only",),
    8,
)

DIGITS = ModelCard(
    "digits",
    "",
    Signature(
        (TensorSpec("image", "float32", (1, 8, 8)),),
        (TensorSpec("scores", "float32", (10,)),),
        True,
    ),
    ("large", "small"),
    8,
)


@asynccontextmanager
async def box_of(url: str, folder: Path, *cards: ModelCard, **settings: Any) -> AsyncIterator[Box]:
    driver = Driver(NamedPolicy("edf", {}))
    driver.catalog.learn("cpu:0", list(cards or [CARD]), [])
    config = CloudConfig.model_validate({"name": "far", "url": url, "timeout_s": 2.0, **settings})
    link = cloud_link(config, driver, folder)
    driver.add_target("far", link)
    try:
        yield Box(driver, link)
        driver.core.validate()
    finally:
        await driver.close()
