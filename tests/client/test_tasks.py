"""Durable tasks through the Python API, against a server that does what a test tells it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from scheduler import (
    AsyncClient,
    CancelledError,
    Client,
    DeadlineExpired,
    InvalidInput,
    Overloaded,
    ProtocolError,
    TaskConflict,
    TaskNotFound,
    Unavailable,
    wire,
)
from tests.fake_box import FakeBox, Peer, ignore, image

STATUS = {
    "task": "t",
    "model": "digits",
    "variant": None,
    "state": "waiting",
    "outcome": None,
    "reason": "",
    "attempts": 0,
    "priority": 3,
    "left_ms": 1500,
    "submitted_unix_ms": 2000,
    "ended_unix_ms": None,
}


def reply(peer: Peer, header: wire.Header, value: Any) -> None:
    peer.send({"t": "reply", "id": header["id"], "value": value})


def accept(peer: Peer, header: wire.Header) -> None:
    reply(peer, header, {"task": header["task"], "new": True})


def test_a_task_is_sent_again_under_its_id_when_no_acknowledgement_comes(box: FakeBox) -> None:
    def lose_the_first(peer: Peer, header: wire.Header) -> None:
        if len(box.messages("task")) == 1:
            time.sleep(0.02)
            peer.drop()
        else:
            accept(peer, header)

    box.on_task = lose_the_first
    with Client(box.url) as client:
        task = client.submit("digits", image(1), deadline_s=3600, durable=True)
    (_, first), (_, second) = box.wait("task", 2)
    assert first["task"] == second["task"] == task.id
    assert 3599e9 < second["budget_ns"] < first["budget_ns"] < 3600e9
    assert second["tensors"]["image"].tolist() == [1.0]


def test_a_box_that_is_not_ready_is_asked_again_with_what_is_left(box: FakeBox) -> None:
    def not_yet(peer: Peer, header: wire.Header) -> None:
        if len(box.messages("task")) < 3:
            peer.refuse(header, "unavailable", "the box is still reading its models")
        else:
            accept(peer, header)

    box.on_task = not_yet
    with Client(box.url) as client:
        client.submit("digits", image(1), deadline_s=3600, durable=True)
    asked = [header for _, header in box.wait("task", 3)]
    assert len({header["task"] for header in asked}) == 1
    assert asked[0]["budget_ns"] - asked[2]["budget_ns"] >= 0.4e9


def test_a_deadline_may_be_far_and_is_given_once(box: FakeBox) -> None:
    box.on_task = accept
    with Client(box.url) as client:
        task = client.submit(
            "digits", image(1), deadline_s=20 * 86400, durable=True, id="mine", priority=5
        )
        assert task.id == "mine"
        ((_, header),) = box.wait("task")
        assert header["budget_ns"] > 19 * 86400e9
        assert header["priority"] == 5
        for wrong in (
            {},
            {"deadline_s": 1, "deadline_ms": 1},
            {"deadline_s": "soon"},
            {"deadline_s": 1, "weight": 2.0},
            {"deadline_s": 1, "accept_late": True},
            {"deadline_s": 1, "id": ""},
            {"deadline_ms": 1e300},
        ):
            with pytest.raises(InvalidInput):
                client.submit("digits", image(1), durable=True, **wrong)
        assert client.submit("digits", image(2), deadline_s=5).result().outcome == "completed"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("task_conflict", TaskConflict),
        ("task_not_found", TaskNotFound),
        ("unavailable", Unavailable),
    ],
)
def test_refusals_are_typed(box: FakeBox, code: str, error: type[Exception]) -> None:
    box.on_task = lambda peer, header: peer.refuse(header, code, durable=False)
    with Client(box.url) as client:
        with pytest.raises(error):
            client.submit("digits", image(1), deadline_s=1, durable=True)
        with pytest.raises(error):
            client.task("t").result()
        with pytest.raises(error):
            client.task("t").cancel()


def test_a_result_is_waited_for_as_long_as_it_takes(box: FakeBox) -> None:
    def at_the_third_time(peer: Peer, header: wire.Header) -> None:
        count = len(box.messages("task_result"))
        if count == 1:
            reply(peer, header, STATUS)
        elif count == 2:
            peer.drop()
        else:
            peer.answer({**header, "tensors": image(7)})

    box.on_task = at_the_third_time
    with Client(box.url) as client:
        result = client.task("t").result()
        assert (result["image"].tolist(), result.outcome) == ([7.0], "completed")
    asked = [header for _, header in box.messages("task_result")]
    assert {header["task"] for header in asked} == {"t"}
    assert all(0 < header["wait_ns"] <= 60e9 for header in asked)


def test_a_wait_is_as_long_as_a_number_of_few_bits_says(box: FakeBox) -> None:
    box.on_task = lambda peer, header: peer.answer({**header, "tensors": image(7)})
    five: Any = np.float16(5)
    with Client(box.url) as client:
        client.task("t").result(timeout=five)
    ((_, header),) = box.messages("task_result")
    assert 4e9 < header["wait_ns"] <= 5e9


def test_a_box_that_serves_too_many_is_asked_again(box: FakeBox) -> None:
    def at_the_third_time(peer: Peer, header: wire.Header) -> None:
        if len(box.messages("task_result")) < 3:
            peer.refuse(header, "overloaded", "results fill the memory there is for them")
        else:
            peer.answer({**header, "tensors": image(7)})

    box.on_task = at_the_third_time
    with Client(box.url) as client:
        assert client.task("t").result()["image"].tolist() == [7.0]
        box.on_task = lambda peer, header: peer.refuse(header, "overloaded", "too many")
        with pytest.raises(Overloaded, match="too many"):
            client.task("t").result(timeout=0)


def test_a_wait_is_over_in_time_and_how_a_task_ended_is_told(box: FakeBox) -> None:
    box.on_task = lambda peer, header: reply(peer, header, STATUS)
    with Client(box.url) as client:
        task = client.task("t")
        with pytest.raises(TimeoutError, match="'t' has not ended within 0 s"):
            task.result(timeout=0)
        status = task.status()
        assert (status.id, status.state, status.left_s) == ("t", "waiting", 1.5)
        assert status.ended_unix_s is None
        box.on_task = lambda peer, header: peer.refuse(header, "cancelled")
        with pytest.raises(CancelledError):
            task.result()
        box.on_task = lambda peer, header: reply(peer, header, {})
        with pytest.raises(ProtocolError):
            task.status()


def test_a_box_that_is_away_is_waited_for_until_the_time_is_over(box: FakeBox) -> None:
    with Client(box.url) as client:
        box.stop()
        with pytest.raises((Unavailable, TimeoutError)):
            client.task("t").result(timeout=0)


def test_an_answer_may_take_longer_than_a_box_that_is_away(box: FakeBox) -> None:
    box.on_infer = ignore

    async def scene() -> None:
        async with AsyncClient(box.url) as client:
            box.on_task = ignore
            asked = asyncio.ensure_future(client.task("t").result(timeout=0))
            with pytest.raises(DeadlineExpired):
                await client.infer("digits", image(1), deadline_ms=700)
            for peer, header in box.messages("task_result"):
                reply(peer, header, STATUS)
            with pytest.raises(TimeoutError, match="'t' has not ended within 0 s"):
                await asked
            box.stop()
            asked = asyncio.ensure_future(client.task("t").result(timeout=0))
            longer = asyncio.ensure_future(client.status(timeout_s=30))
            await asyncio.wait((asked, longer), return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(asked.exception(), Unavailable)
            assert not longer.done()
            longer.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
def test_a_wait_is_a_number_of_seconds(box: FakeBox, timeout: Any) -> None:
    with Client(box.url) as client, pytest.raises(InvalidInput, match="timeout is a number of"):
        client.task("t").result(timeout)


def test_asyncio_has_the_same(box: FakeBox) -> None:
    async def scene() -> None:
        async with AsyncClient(box.url) as client:
            box.on_task = accept
            task = await client.submit("digits", image(1), deadline_ms=50, durable=True, id="a")
            assert (task.id, client.task("b").id) == ("a", "b")
            box.on_task = lambda peer, header: peer.answer({**header, "tensors": image(3)})
            assert (await task.result(5))["image"].tolist() == [3.0]
            box.on_task = lambda peer, header: reply(peer, header, STATUS)
            assert (await task.status()).model == "digits"
            box.on_task = lambda peer, header: reply(peer, header, {"cancelled": True})
            assert await task.cancel()
            box.on_task = lambda peer, header: reply(peer, header, {"forgotten": True})
            assert await task.forget()
            assert box.messages("task_forget")[0][1]["task"] == "a"
            listed = {"tasks": [STATUS], "counts": {"waiting": 1}}
            box.on_task = lambda peer, header: reply(peer, header, dict(listed))
            assert (await client.tasks(1, before="z"))["tasks"][0].id == "t"
            assert box.messages("tasks")[0][1]["before"] == "z"
            box.on_task = lambda peer, header: peer.refuse(header, "task_not_found")
            with pytest.raises(TaskNotFound):
                await task.status()

    asyncio.run(scene())


def test_infer_waits_for_the_result_of_a_task(box: FakeBox) -> None:
    def keep(peer: Peer, header: wire.Header) -> None:
        if header["t"] == "task":
            accept(peer, header)
        else:
            peer.answer({**header, "tensors": image(3)})

    async def scene() -> Any:
        async with AsyncClient(box.url) as client:
            submitted = client.submit("digits", image(1), deadline_s=60, durable=True, id="a")
            assert (await asyncio.create_task(submitted)).id == "a"
            result = await client.infer("digits", image(1), deadline_s=60, durable=True)
            return result["image"].tolist()

    box.on_task = keep
    assert asyncio.run(scene()) == [3.0]
    with Client(box.url) as threads:
        result = threads.infer("digits", image(1), deadline_s=60, durable=True)
        assert result["image"].tolist() == [3.0]


def test_people_are_told_of_a_task_in_the_words_of_the_list(box, laxity) -> None:
    status = {**STATUS, "left_ms": 3_517_549, "submitted_unix_ms": 1_795_368_993_139}
    box.on_task = lambda peer, header: reply(peer, header, status)
    _, out, _ = laxity("task", "show", "t", "--url", box.url)
    told = dict(line.partition(" ")[::2] for line in out.splitlines())
    assert told["deadline"].strip() == "in 58 min 37 s"
    submitted = time.mktime(time.strptime(told["submitted"].strip(), "%Y-%m-%d %H:%M:%S"))
    assert submitted == 1_795_368_993
    assert (told["state"].strip(), told["ended"].strip()) == ("waiting", "")
    assert told["failures"].strip() == "0", "how often it was run and failed, not how often it ran"
    assert (
        json.loads(laxity("task", "show", "t", "--url", box.url, "--json")[1])["left_s"] == 3517.549
    )
