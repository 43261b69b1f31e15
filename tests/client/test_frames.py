"""`map` over frames that come while time passes, as a camera's do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from typing_extensions import assert_type

from scheduler import (
    AsyncClient,
    Client,
    ModelNotFound,
    Overloaded,
    Result,
    Task,
    Unavailable,
    wire,
)
from tests.fake_box import MODELS, FakeBox, Peer, ignore, image

MINUTE_MS = 60_000


def test_a_result_waits_for_one_frame_at_most(box: FakeBox) -> None:
    told = 0

    def camera() -> Iterator[wire.Tensors]:
        for n in range(10):
            assert told >= n - 1
            yield image(n)
            client.infer("digits", image(99), deadline_ms=MINUTE_MS)  # answered after that frame

    with Client(box.url) as client:
        for result in client.map("digits", camera(), deadline_ms=MINUTE_MS):
            assert result["image"].item() == told
            told += 1
    assert told == 10


def test_with_a_concurrency_of_one_a_result_waits_for_no_frame(box: FakeBox) -> None:
    told = 0

    def camera() -> Iterator[wire.Tensors]:
        for n in range(5):
            assert told == n
            yield image(n)

    with Client(box.url) as client:
        for result in client.map("digits", camera(), deadline_ms=MINUTE_MS, concurrency=1):
            assert result["image"].item() == told
            told += 1
    assert told == 5


def test_a_type_checker_knows_what_comes(box: FakeBox) -> None:
    with Client(box.url) as client:
        for result in client.map("digits", [image(1)], deadline_s=60):
            assert_type(result, Result)
        for told in client.map("digits", [image(1)], deadline_s=60, return_exceptions=True):
            assert_type(told, Result | Exception)

        def ask(durable: bool) -> None:
            assert_type(
                client.submit("digits", image(1), deadline_s=60, durable=durable),
                Future[Result] | Task,
            )

        ask(durable=False)

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            async for result in client.map("digits", [image(1)], deadline_s=60):
                assert_type(result, Result)

    asyncio.run(main())


def test_durable_tasks_can_be_mapped_and_go_on(box: FakeBox) -> None:
    def keep(peer: Peer, header: wire.Header) -> None:
        if header["t"] == "task":
            peer.send({"t": "reply", "id": header["id"], "value": {}})
        else:
            peer.answer({**header, "tensors": image(1)})

    box.on_task = keep
    with Client(box.url) as client:
        frames = [image(1)] * 3
        results = client.map("digits", frames, deadline_ms=MINUTE_MS, concurrency=2, durable=True)
        assert [result["image"].item() for result in results] == [1] * 3
        broken_off: Any = client.map("digits", frames, deadline_ms=MINUTE_MS, durable=True)
        next(broken_off)
        broken_off.close()
    assert not box.messages("task_cancel")

    async def main() -> list[float]:
        async with AsyncClient(box.url) as client:
            results = client.map("digits", frames, deadline_ms=MINUTE_MS, durable=True)
            return [result["image"].item() async for result in results]

    assert asyncio.run(main()) == [1] * 3


def test_the_error_of_a_frame_without_the_name_of_its_input_has_its_turn(box: FakeBox) -> None:
    array = np.ones(2, np.float32)

    def frames() -> Iterator[Any]:
        yield image(1)
        box.models = {"models": [], "problems": [{"model": "digits", "reason": "its file is gone"}]}
        yield array
        box.models = MODELS
        yield array

    def seen(told: list[Any]) -> None:
        first, bad, last = told
        assert first["image"].item() == 1
        assert str(bad) == "model 'digits' can't be served: its file is gone"
        assert last["image"].tolist() == [1, 1]

    options: Any = {"deadline_ms": MINUTE_MS}
    with Client(box.url) as client:
        seen(list(client.map("digits", frames(), return_exceptions=True, **options)))
    with Client(box.url) as client:
        results = client.map("digits", frames(), **options)
        assert next(results)["image"].item() == 1
        with pytest.raises(ModelNotFound, match="its file is gone"):
            next(results)

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            results = client.map("digits", frames(), return_exceptions=True, **options)
            seen([result async for result in results])

    asyncio.run(main())


def test_a_box_that_is_away_is_waited_for_until_the_deadline_of_a_frame(
    box: FakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.client.input_names.ANSWER_S", 3600.0)
    frames = [np.ones(2, np.float32)] * 3
    options: Any = {"return_exceptions": True, "deadline_s": 0.02}
    with Client(box.url) as client:
        box.stop()
        box.wait("lost")
        told = list(client.map("digits", frames, **options))
        assert [type(error) for error in told] == [Unavailable] * 3

    async def main() -> None:
        client = AsyncClient(box.url)
        results = client.map("digits", frames, **options)
        assert [type(error) async for error in results] == [Unavailable] * 3
        await client.close()

    asyncio.run(main())


def test_a_frame_outlives_a_restart_that_takes_longer_than_an_answer(
    box: FakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.client.input_names.ANSWER_S", 1e-9)
    frames = [np.ones(2, np.float32)] * 3
    with Client(box.url) as client:
        box.stop()
        box.wait("lost")
        again = threading.Thread(target=box.start)
        again.start()
        results = client.map("digits", frames, deadline_ms=MINUTE_MS)
        assert [result["image"].tolist() for result in results] == [[1, 1]] * 3
        again.join()


def test_a_box_that_is_there_may_take_longer_to_tell_its_models_than_a_frame_has(
    box: FakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = box.take

    def slow(peer: Peer, header: wire.Header) -> None:
        if header["t"] == "models":
            time.sleep(2.2)
        take(peer, header)

    monkeypatch.setattr(box, "take", slow)
    frames = [np.ones(2, np.float32)] * 3
    with Client(box.url) as client:
        results = client.map("digits", frames, deadline_ms=2_000)
        assert [result["image"].tolist() for result in results] == [[1, 1]] * 3
    assert len(box.messages("models")) == 1


def test_a_durable_task_that_is_refused_has_its_turn(box: FakeBox) -> None:
    def refuse_odd(peer: Peer, header: wire.Header) -> None:
        if header["t"] == "task_result":
            peer.answer({**header, "tensors": image(0)})
        elif header["tensors"]["image"].item() % 2:
            peer.refuse(header, "overloaded")
        else:
            peer.send({"t": "reply", "id": header["id"], "value": {}})

    box.on_task = refuse_odd
    with Client(box.url) as client:
        frames = [image(n) for n in range(3)]
        results = client.map(
            "digits", frames, deadline_ms=MINUTE_MS, durable=True, return_exceptions=True
        )
        assert [type(result) for result in results] == [Result, Overloaded, Result]


def test_a_camera_that_blocks_the_event_loop_loses_no_frame(
    box: FakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.client.frames._TURN_S", 0)

    def camera() -> Iterator[wire.Tensors]:
        for n in range(10):
            yield image(n)
            box.wait("infer", n + 1)

    async def main() -> list[float]:
        async with AsyncClient(box.url) as client:
            results = client.map("digits", camera(), deadline_ms=MINUTE_MS)
            return [result["image"].item() async for result in results]

    assert asyncio.run(main()) == list(range(10))


def test_who_sends_a_frame_once_the_last_was_answered_is_served(box: FakeBox) -> None:
    async def main() -> None:
        answered = asyncio.Event()

        async def frames() -> AsyncIterator[Any]:
            for n in range(5):
                yield np.full(2, n, np.float32)
                await answered.wait()
                answered.clear()

        seen = []
        async with AsyncClient(box.url) as client:
            async for result in client.map("digits", frames(), deadline_ms=MINUTE_MS):
                seen.append(result["image"].tolist())
                answered.set()
        assert seen == [[n, n] for n in range(5)]

    asyncio.run(main())


def test_frames_that_are_waited_for_are_bounded_and_in_order(box: FakeBox) -> None:
    async def main() -> None:
        drawn = seen = 0

        async def frames() -> AsyncIterator[wire.Tensors]:
            nonlocal drawn
            for drawn in range(1, 51):
                yield image(drawn - 1)

        async with AsyncClient(box.url) as client:
            results = client.map("digits", frames(), deadline_ms=MINUTE_MS, concurrency=4)
            async for result in results:
                assert result["image"].item() == seen
                seen += 1
                assert drawn <= seen + 4  # and one that waits for its turn
            assert seen == 50

    asyncio.run(main())


def test_what_is_wrong_with_frames_that_are_waited_for_is_raised_and_ends_them(
    box: FakeBox,
) -> None:
    box.on_infer = ignore
    ended = []

    async def broken() -> AsyncIterator[wire.Tensors]:
        yield image(1)
        raise OSError("no camera")

    async def endless() -> AsyncGenerator[wire.Tensors, None]:
        try:
            while True:
                yield image(1)
        finally:
            ended.append("endless")

    async def main() -> None:
        async with AsyncClient(box.url) as client:
            with pytest.raises(OSError, match="no camera"):
                async for _ in client.map("digits", broken(), deadline_ms=MINUTE_MS):
                    pass
            source = endless()
            results = client.map("digits", source, deadline_ms=MINUTE_MS, concurrency=3)
            asking = asyncio.ensure_future(anext(results))
            await asyncio.to_thread(box.wait, "infer", 4)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await source.aclose()

    asyncio.run(main())
    assert ended == ["endless"]
    box.wait("cancel", 4)
