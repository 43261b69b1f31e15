"""A client and a box with an emulated link between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from replay.links import LinkEmulator, OneWay
from scheduler import AsyncClient, DeadlineExpired, DeadlineInfeasible
from tests.e2e.running_agent import RunningAgent

X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
WAY = OneWay(delay_ms=40)
RTT_MS = 80
PATIENCE_S = 60
PATIENT_MS = 20_000


def through(
    agent: RunningAgent, test: Callable[[LinkEmulator, AsyncClient], Awaitable[None]]
) -> None:
    async def connect() -> None:
        link = LinkEmulator("127.0.0.1:0", agent.url, up=WAY, down=WAY)
        async with link, AsyncClient(link.address) as client:
            await test(link, client)

    asyncio.run(asyncio.wait_for(connect(), PATIENCE_S))


def test_the_way_counts(shared_agent: RunningAgent) -> None:
    async def test(_: LinkEmulator, client: AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await client.infer("relu", X, deadline_ms=PATIENT_MS)
        assert (loop.time() - began) * 1e3 >= RTT_MS
        assert result["y"].tolist() == [0, 0, 2]
        with pytest.raises((DeadlineExpired, DeadlineInfeasible)):
            await client.infer("relu", X, deadline_ms=RTT_MS - 10)

    through(shared_agent, test)


def test_an_outage_costs_what_was_asked_in_it(shared_agent: RunningAgent) -> None:
    async def test(link: LinkEmulator, client: AsyncClient) -> None:
        await client.infer("relu", X, deadline_ms=PATIENT_MS)
        link.outage()
        with pytest.raises(DeadlineExpired):
            await client.infer("relu", X, deadline_ms=300)
        waiting = client.submit("relu", X, deadline_ms=PATIENT_MS)
        link.restore()
        assert (await waiting)["y"].tolist() == [0, 0, 2]

    through(shared_agent, test)


def test_a_broken_link_is_dialled_again(shared_agent: RunningAgent) -> None:
    async def test(link: LinkEmulator, client: AsyncClient) -> None:
        await client.infer("relu", X, deadline_ms=PATIENT_MS)
        link.outage(reset=True)
        waiting = client.submit("relu", X, deadline_ms=PATIENT_MS)
        while link.counters().connections < 3:  # it tries again
            await asyncio.sleep(0.01)
        link.restore()
        assert (await waiting)["y"].tolist() == [0, 0, 2]

    through(shared_agent, test)
