"""Large outputs that clients on the box's machine copy from where a worker has written them."""

from __future__ import annotations

import asyncio
import itertools
import select
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import numpy as np
import pytest

from scheduler import AsyncClient, Client, ProtocolError
from scheduler.client import connection, shown_memory
from scheduler.client.shown_memory import ShownMemory
from scheduler.daemon import shared_bodies
from scheduler.ingress import showing
from scheduler.shared_pages import LEAST_BYTES
from scheduler.tenants import Access, Tenant, hash_of, new_token
from scheduler.wire import Header, pack_tensors
from tests.daemon.large_box import LARGE, MINUTE_MS, Raw, same, until, vector
from tests.waiting import PATIENCE_S


@pytest.fixture
def received(monkeypatch):
    """Of each result that a client receives: the size of what was sent, or where it is."""
    found: list[Any] = []
    hear = connection.Connection._hear

    def heard(self: Any, header: Header, body: Any) -> None:
        if header["t"] == "result":
            found.append(header.get("at", 0 if body is None else len(body)))
        hear(self, header, body)

    monkeypatch.setattr(connection.Connection, "_hear", heard)
    return found


def shown(box: Any) -> list[Any]:
    return [one._showing._shown for one in box.door._connections if one._showing is not None]


def test_once_its_memory_is_mapped_large_outputs_are_sent_nowhere(played, received):
    async def acts(box, client):
        await same(client, LARGE)  # the worker offers the scheduler its memory
        await same(client, LARGE)  # and the scheduler the client
        results = [await same(client, LARGE, value) for value in range(5)]
        assert received[:2] == 2 * [4 * LARGE]
        assert all(type(place) is list for place in received[2:])
        for value, result in enumerate(results):  # they are the caller's own
            assert result["y"][0] == value
            result["y"][0] = 7
        await until(lambda: not any(shown(box)))
        await until(lambda: not box.server._results_in._blocks._taken)
        await same(client, LARGE - 1)
        assert received[-1] == 4 * (LARGE - 1)

    played(acts)


def test_many_at_once_are_kept_apart(played, received):
    async def acts(box, client):
        for round_ in range(20):
            await asyncio.gather(*(same(client, LARGE + n, n + round_) for n in range(8)))
        assert sum(type(place) is list for place in received) > 100
        await until(lambda: not any(shown(box)))

    played(acts)


def test_a_client_that_can_not_see_the_memory_is_sent_its_outputs(played, monkeypatch, received):
    def hidden(_where, writable):
        raise FileNotFoundError("in another container")

    monkeypatch.setattr(shown_memory, "opened", hidden)

    async def acts(_box, client):
        for value in range(5):
            await same(client, LARGE, value)
        assert received == 5 * [4 * LARGE]

    played(acts)


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_only_the_owner_on_this_machine_is_shown_memory(played, received, way):
    async def acts(box, _client):
        token = new_token()
        if way == "unix":
            box.door.take_access(Access([Tenant(name="guest", tokens=(hash_of(token),))]))
            url = box.url
        else:
            listening = await asyncio.get_running_loop().create_server(box.door, "127.0.0.1", 0)
            url = f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, token=token) as client:
            for value in range(4):
                await same(client, LARGE, value)
        assert received == 4 * [4 * LARGE]
        if way == "tcp":
            listening.close()

    played(acts)


def test_the_memory_of_a_worker_that_is_gone_is_unmapped(played, monkeypatch, received):
    monkeypatch.setattr(shared_bodies, "TIDY_S", 0.01)
    mapped: list[ShownMemory] = []
    init = ShownMemory.__init__

    def made(self: ShownMemory) -> None:
        init(self)
        mapped.append(self)

    monkeypatch.setattr(ShownMemory, "__init__", made)

    async def acts(box, _client):
        async with AsyncClient(box.url) as client:
            for value in range(3):
                await same(client, LARGE, value)
            (first,) = mapped[-1]._pages
            (way,) = box.driver._linked.values()
            lost = way.link._transport
            lost.abort()
            await until(lambda: not mapped[-1]._pages)
            await until(lambda: way.link._transport not in (lost, None))
            for value in range(3):
                await same(client, LARGE, value)
            (second,) = mapped[-1]._pages
            assert second != first
            assert type(received[-1]) is list

    played(acts)


def test_what_is_copied_as_the_box_closes_the_connection_is_asked_again(played, monkeypatch):
    copying, go = threading.Event(), threading.Event()
    read = ShownMemory.copied

    def copied(self: ShownMemory, header: Header) -> Any:
        body = read(self, header)
        if not copying.is_set():
            copying.set()
            assert go.wait(PATIENCE_S)
            # What may have become of it meanwhile.
            np.frombuffer(body, np.float32)[:] = 666
        return body

    async def acts(box, _client):
        client = await asyncio.to_thread(Client, box.url)
        with closing(client):
            ask = lambda: client.infer("same", vector(LARGE, 5), deadline_ms=MINUTE_MS)  # noqa: E731
            for _ in range(2):
                await asyncio.to_thread(ask)
            monkeypatch.setattr(ShownMemory, "copied", copied)
            asked = asyncio.ensure_future(asyncio.to_thread(ask))
            await until(copying.is_set)
            (theirs,) = [kept for kept in shown(box) if kept]
            (one,) = [one for one in box.door._connections if one.shown_bytes]
            before = len(box.host.batches)
            one.close()
            await until(lambda: not theirs)
            go.set()
            result = await asked
            assert np.array_equal(result["y"], vector(LARGE, 5)["x"])
            assert len(box.host.batches) == before + 1

    played(acts)


def test_nothing_is_overwritten_before_the_other_end_sees_that_the_connection_is_closed(played):
    async def acts(box, _client):
        async with greeted(box) as raw:
            await asked(raw, 3)
            (theirs,) = [kept for kept in shown(box) if kept]
            poll = select.poll()
            poll.register(raw.peer, 0)
            seen: list[bool] = []

            class Watched(dict[Any, Any]):
                def clear(self) -> None:
                    seen.append(bool(poll.poll(0)))
                    super().clear()

            (one,) = [one for one in box.door._connections if one.shown_bytes]
            one._showing._shown = Watched(theirs)
            assert not poll.poll(0)
            one.close()
            await until(lambda: seen)
            assert seen == [True]

    played(acts)


@asynccontextmanager
async def greeted(box: Any) -> AsyncIterator[Raw]:
    """A client that may be shown memory."""
    raw = Raw(f"{box.folder}/s")
    with closing(raw.peer):
        await asyncio.to_thread(raw.ask, {"t": "hello", "v": 1, "memory": True})
        assert (await asyncio.to_thread(raw.hear))["t"] == "welcome"
        yield raw


async def asked(raw: Raw, count: int, says: str = "mapped") -> list[Header]:
    """Asks so often, one after the other, without copying anything; the headers of the results."""
    specs, body = pack_tensors(vector(LARGE))
    infer = {"t": "infer", "model": "same", "budget_ns": 10**10, "in": specs}
    results: list[Header] = []
    for number in range(count):
        await asyncio.to_thread(raw.ask, {**infer, "id": number}, b"".join(body))
        while len(results) == number:
            header = await asyncio.wait_for(asyncio.to_thread(raw.hear), PATIENCE_S)
            if header["t"] == "map":
                await asyncio.to_thread(raw.ask, {"t": says, "pages": header["pages"]})
            elif header["t"] == "result":
                results.append(header)
            else:
                assert header["t"] == "memory", header
    return results


def test_a_client_that_copies_nothing_is_sent_the_rest(played, monkeypatch):
    monkeypatch.setattr(showing, "MOST_BYTES", 3 * LEAST_BYTES)

    async def acts(box, _client):
        async with greeted(box) as raw:
            results = await asked(raw, 8)
            assert ["at" in result for result in results] == 2 * [False] + 3 * [True] + 3 * [False]
            free = {"t": "free", "at": [result["at"] for result in results[2:4]]}
            await asyncio.to_thread(raw.ask, free)
            (one,) = [one for one in box.door._connections if one.shown_bytes]
            await until(lambda: one.shown_bytes == LEAST_BYTES)
            raw.peer.close()
            await until(lambda: not box.server._results_in._blocks._taken)

    played(acts)


@pytest.mark.parametrize(
    "said",
    [
        {"t": "free", "at": [[1, 0]]},
        {"t": "free", "at": [7]},
        {"t": "free", "at": 7},
        {"t": "free", "at": [[[], {}]]},
        {"t": "free"},
    ],
)
def test_what_was_not_shown_can_not_be_freed(played, said):
    async def acts(box, _client):
        async with greeted(box) as raw:
            await asyncio.to_thread(raw.ask, said)
            heard = await asyncio.to_thread(raw.hear)
            assert (heard["t"], heard["code"]) == ("error", "protocol"), heard

    played(acts)


def test_what_a_client_says_of_other_memory_is_of_no_effect(played):
    async def acts(box, _client):
        async with greeted(box) as raw:
            results = await asked(raw, 4, "not_mapped")
            others: list[Any] = [None, 99, [], "0"]
            for says, other in itertools.product(("mapped", "not_mapped"), others):
                await asyncio.to_thread(raw.ask, {"t": says, "pages": other})
            results += await asked(raw, 4, "not_mapped")
            assert not any("at" in result for result in results)

    played(acts)


def test_as_the_box_closes_outputs_are_sent_and_those_shown_are_waited_for(played, received):
    async def acts(box, client):
        for value in range(3):
            await same(client, LARGE, value)
        box.host.go.clear()
        box.host.began.clear()
        last = asyncio.ensure_future(same(client, LARGE, 3))
        await until(box.host.began.is_set)
        box.door.stop_admitting()
        box.host.go.set()
        await last
        assert received[-1] == 4 * LARGE
        await box.door.wait_copied(PATIENCE_S)
        assert not any(shown(box))

    played(acts)


def test_shown_results_keep_the_box_open_for_a_while(played):
    async def acts(box, _client):
        async with greeted(box) as raw:
            results = await asked(raw, 3)
            waiting = asyncio.ensure_future(box.door.wait_copied(PATIENCE_S))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
            await asyncio.to_thread(raw.ask, {"t": "free", "at": [results[-1]["at"]]})
            await waiting
            await box.door.wait_copied(0)

    played(acts)


def test_a_box_that_shows_nothing_there_is_not_trusted_further():
    memory = ShownMemory()
    for header in ({"at": [1, 0], "out": []}, {"at": 7, "out": []}, {"at": [1, 0]}):
        with pytest.raises(ProtocolError, match="does not show"):
            memory.copied({"t": "result", **header})
    with pytest.raises(ProtocolError, match="without a number"):
        memory.forget({"t": "forget"})
    for said in ({}, {"pages": 1}, {"pages": 1, "pid": 1, "fd": 2**80, "inode": 0, "bytes": 1}):
        assert memory.map({"t": "map", **said})["t"] == "not_mapped"


def test_outputs_are_read_only_within_the_memory():
    pages = shared_bodies.SharedBodies(LEAST_BYTES).pages[0]
    memory = ShownMemory()
    assert memory.map({"t": "map", "pages": 3, **pages.where}) == {"t": "mapped", "pages": 3}
    out = [["y", "float32", [LARGE]]]
    assert len(memory.copied({"t": "result", "at": [3, 0], "out": out})) == LEAST_BYTES
    for start in (64, -64, None, 2**70):
        with pytest.raises(ProtocolError, match="does not show"):
            memory.copied({"t": "result", "at": [3, start], "out": out})
    for _ in range(2):
        memory.forget({"t": "forget", "pages": 3})
        with pytest.raises(ProtocolError, match="does not show"):
            memory.copied({"t": "result", "at": [3, 0], "out": out})
