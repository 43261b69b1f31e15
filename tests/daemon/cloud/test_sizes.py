"""What a server says is too large is not sent there again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature, TensorSpec
from tests.daemon.cloud.boxes import CARD, Box, box_of, floats
from tests.daemon.cloud.far_server import far_server
from tests.daemon.cloud.test_http import HttpServer, good

MOST_BYTES = 4_500
FREE = Signature(
    (TensorSpec("x", "float32", (None,)),), (TensorSpec("y", "float32", (None,)),), True
)
ANY_SIZE = replace(CARD, signature=FREE)


@asynccontextmanager
async def grpc_server() -> AsyncIterator[tuple[str, list[Any]]]:
    async with far_server(most_bytes=MOST_BYTES) as far:
        far.shape = [-1, -1]
        yield far.url, far.asked


@asynccontextmanager
async def http_server() -> AsyncIterator[tuple[str, list[Any]]]:
    async def limited(request: web.Request, said: Any, tensors: bytes) -> web.StreamResponse:
        if len(tensors) > MOST_BYTES:
            return web.json_response({"error": "too much"}, status=413)
        return await good(request, said, tensors)

    far = HttpServer([-1, -1])
    far.answer = limited
    url = await far.start()
    try:
        yield url, far.asked
    finally:
        await far.stop()


@pytest.mark.parametrize("server", [grpc_server, http_server])
def test_batches_stay_below_what_was_refused_and_what_is_too_large_alone_stays_here(
    tmp_path: Path, server: Any
):
    async def run() -> None:
        async with server() as (url, asked), box_of(url, tmp_path, ANY_SIZE) as box:
            await box.until(lambda: box.is_up)
            await check(box, asked)

    async def check(box: Box, asked: list[Any]) -> None:
        x = np.ones(300, np.float32)  # four are too much at once, two are not
        for _ in range(4):
            answers = await asyncio.gather(*[box.ask(x, 20_000) for _ in range(12)])
            assert all((floats(answer) == 2).all() for answer in answers)
        assert {answer.batch for answer in answers} <= {1, 2}
        large = np.ones(2_000, np.float32)
        for _ in range(2):
            refused = await box.ask(large, 20_000)
            assert refused.outcome is Outcome.UNAVAILABLE
            assert "are refused by far" in refused.reason
        (told,) = box.link.describe()["too_large"]
        assert told == {"model": "double", "shapes": ((2_000,),)}
        sent = len(asked)
        assert (await box.ask(large, 20_000)).outcome is Outcome.UNAVAILABLE
        assert len(asked) == sent
        assert (floats(await box.ask(x, 20_000)) == 2).all(), "others go on"
        assert box.breaker == "closed"

    asyncio.run(run())


def test_a_server_that_was_away_may_take_more_than_before(tmp_path: Path):
    async def run() -> None:
        async with far_server(most_bytes=MOST_BYTES) as far:
            far.shape = [-1, -1]
            async with box_of(far.url, tmp_path, ANY_SIZE, probe_s=0.1) as box:
                await box.until(lambda: box.is_up)
                large = np.ones(2_000, np.float32)
                assert (await box.ask(large, 20_000)).outcome is Outcome.UNAVAILABLE
                await far.stop()
                await box.until(lambda: box.breaker == "open")
                await far.start()
                await box.until(lambda: box.breaker == "half-open")
                assert (floats(await box.ask(large, 20_000)) == 2).all()
                assert box.link.describe()["too_large"] == []

    asyncio.run(run())
