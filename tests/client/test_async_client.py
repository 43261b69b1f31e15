from __future__ import annotations

import asyncio
import gc
import pickle
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scheduler import (
    AsyncClient,
    DeadlineExpired,
    InvalidInput,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from scheduler.address import AddressError
from tests.fake_box import ignore, image

MINUTE_MS = 60_000


def test_infer_submit_and_questions(box):
    async def main() -> None:
        async with AsyncClient(box.url) as client:
            result = await client.infer("digits", image(1, 2), deadline_ms=MINUTE_MS, priority=1)
            assert result["image"].tolist() == [1, 2]
            futures = [client.submit("digits", image(n), deadline_ms=MINUTE_MS) for n in range(99)]
            results = await asyncio.gather(*futures)
            assert [result["image"].item() for result in results] == list(range(99))
            assert (await client.models())["models"][0]["name"] == "digits"
            assert await client.status() == {"site": "test"}
            assert (await client.infer("digits", image(1), deadline_s=60))["image"] == [1]
            mapped = client.map("digits", [image(2)], deadline_s=60)
            assert [result["image"] async for result in mapped] == [[2]]

    asyncio.run(main())
    assert box.messages("infer")[0][1]["priority"] == 1


def test_it_connects_with_the_first_request(box):
    async def main() -> None:
        client = AsyncClient(box.url)
        assert (await client.infer("digits", image(1), deadline_ms=MINUTE_MS)).batch == 1
        await client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            await client.infer("digits", image(1), deadline_ms=MINUTE_MS)

    asyncio.run(main())


def test_nobody_there(tmp_path):
    async def main() -> None:
        client = AsyncClient(f"unix://{tmp_path}/none")
        with pytest.raises(Unavailable, match="is edge_agent running"):
            await client.connect(0.02)
        with pytest.raises(Unavailable, match="is edge_agent running"):
            await client.infer("digits", image(1), deadline_ms=20)
        await client.close()

    asyncio.run(main())


def test_a_refused_client_refuses_at_once(box):
    box.on_hello = lambda peer, _: peer.refuse({"id": None}, "unauthorized", "wrong token")

    async def main() -> None:
        client = AsyncClient(box.url, token="guess")
        for _ in range(3):
            with pytest.raises(Unauthorized, match="wrong token"):
                await client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        await client.close()

    asyncio.run(main())
    assert len(box.messages("hello")) == 1


def test_cancelling_the_task_that_waits_tells_the_box(box):
    box.on_infer = ignore

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            task = asyncio.create_task(client.infer("digits", image(1), deadline_ms=MINUTE_MS))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, box.wait, "infer")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await loop.run_in_executor(None, box.wait, "cancel")

    asyncio.run(main())


def test_the_deadline_is_said_when_it_passes(box):
    box.on_infer = ignore

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            with pytest.raises(DeadlineExpired):
                await client.infer("digits", image(1), deadline_ms=5)

    asyncio.run(main())


def test_a_result_that_is_read_after_the_deadline_is_late(box):
    async def main() -> None:
        async with AsyncClient(box.url) as client:
            late = client.submit("digits", image(1), deadline_ms=400, accept_late=True)
            missed = client.submit("digits", image(2), deadline_ms=400)
            until = time.monotonic() + 0.401
            await asyncio.sleep(0)
            # The loop stands still while both answers come and the deadline passes.
            box.wait("infer", 2)
            while time.monotonic() < until:
                pass
            with pytest.raises(DeadlineExpired, match=r"came .* ms after the deadline of 400 ms"):
                await missed
            assert (await late).late

    asyncio.run(main())


def test_map_is_in_order_and_lazy(box):
    async def main() -> None:
        async with AsyncClient(box.url) as client:
            drawn = seen = 0

            def frames() -> Iterator[Any]:
                nonlocal drawn
                for drawn in range(1, 51):
                    yield np.full(2, drawn - 1, np.float32)

            results = client.map("digits", frames(), deadline_ms=MINUTE_MS, concurrency=4)
            async for result in results:
                assert result["image"].tolist() == [seen, seen]
                seen += 1
                assert drawn <= seen + 3
            assert seen == 50
            assert repr(client) == f"AsyncClient({box.url!r})"
            with pytest.raises(InvalidInput, match="concurrency"):
                async for _ in client.map("digits", [], deadline_ms=1, concurrency=0):
                    pass

    asyncio.run(main())
    assert len(box.messages("models")) == 1


def test_errors_of_a_map_are_raised_or_yielded(box):
    box.on_infer = lambda peer, header: peer.refuse(header, "overloaded", "full")

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            frames = [image(n) for n in range(3)]
            results = client.map("digits", frames, deadline_ms=MINUTE_MS, return_exceptions=True)
            assert [str(error) async for error in results] == ["full"] * 3
            bad = [{"image": None}, image(1)]
            results = client.map("digits", bad, deadline_ms=MINUTE_MS, return_exceptions=True)
            assert [type(error) async for error in results] == [InvalidInput, Overloaded]
            with pytest.raises(Exception, match="full"):
                async for _ in client.map("digits", frames, deadline_ms=MINUTE_MS):
                    pass

    asyncio.run(main())


def test_it_belongs_to_one_event_loop(box):
    client = AsyncClient(box.url)

    async def ask() -> float:
        result = await client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        return float(result["image"].item())

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(ask()) == 1
    for refused in (ask, client.status, client.connect, client.close):
        with pytest.raises(RuntimeError, match="first used in another event loop"):
            asyncio.run(refused())
    assert loop.run_until_complete(ask()) == 1
    loop.run_until_complete(client.close())
    loop.close()
    asyncio.run(client.close())


def test_a_dropped_client_serves_what_is_in_flight_and_lets_go(box):
    async def main() -> None:
        future = AsyncClient(box.url).submit("digits", image(1), deadline_ms=MINUTE_MS)
        gc.collect()
        assert (await future)["image"] == [1]
        assert not box.messages("lost")
        del future
        gc.collect()
        await asyncio.to_thread(box.wait, "lost")

    asyncio.run(main())


def test_it_can_not_be_sent_to_another_process(box):
    async def main() -> None:
        async with AsyncClient(box.url) as client:
            with pytest.raises(TypeError, match="make one in each process"):
                pickle.dumps(client)

    asyncio.run(main())


def test_an_address_is_checked_at_once():
    with pytest.raises(AddressError, match="did you mean 'tcp://box:8702'"):
        AsyncClient("box:8702")
