"""Large tensors from a client through a door and the scheduler to a worker, and back."""

from __future__ import annotations

import asyncio
import errno
import random
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
import structlog

import workers.link_server
from scheduler import AsyncClient, DeadlineExpired, InvalidInput, shared_pages
from scheduler.client import connection, lent_memory
from scheduler.client.lent_memory import borrowed
from scheduler.core.offers import Offer
from scheduler.daemon import shared_bodies, worker_link
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.shared_pages import LEAST_BYTES
from scheduler.tenants import Access, Tenant, hash_of, new_token
from scheduler.wire import Header, encode, pack_tensors
from tests.daemon.large_box import CARD, LARGE, MINUTE_MS, SAME, Raw, X, ends, same, until, vector
from tests.waiting import PATIENCE_S
from workers.link import offer_header, results_from


def test_after_the_first_ones_large_inputs_are_sent_nowhere(played):
    async def acts(box, client):
        for value in range(5):
            await ends(client, LARGE, value)
        assert box.host.shared == [False, False, True, True, True]  # two pieces of memory to map
        assert len(box.lent) == 1
        received = sum(connection._reader.header_bytes for connection in box.door._connections)
        assert received < 2000
        await until(lambda: not box.taken())
        await ends(client, LARGE - 1)
        assert not box.host.shared[-1]

    played(acts)


def test_those_of_a_client_that_can_not_see_the_memory_are_received_into_it(played, monkeypatch):
    monkeypatch.setattr(connection, "borrowed", lambda header: borrowed({**header, "inode": 1}))

    async def acts(box, client):
        for value in range(3):
            await ends(client, LARGE, value)
        assert box.host.shared == [False, True, True]
        assert box.lent == []

    played(acts)


def test_a_client_over_tcp_is_lent_nothing(played):
    async def acts(box, _client):
        server = await asyncio.get_running_loop().create_server(box.door, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"tcp://127.0.0.1:{port}") as client:
            for value in range(3):
                await ends(client, LARGE, value)
        server.close()
        assert box.host.shared == [False, True, True]
        assert list(box.driver.shared.pages) == [0]
        assert box.lent == []

    played(acts)


@pytest.mark.parametrize("name", ["owner", "other"])
def test_of_tenants_only_the_owner_is_lent_memory_as_a_quota_counts_what_is_received(played, name):
    async def acts(box, _client):
        token = new_token()
        box.door.take_access(Access([Tenant(name=name, tokens=(hash_of(token),))]))
        async with AsyncClient(box.url, token=token) as client:
            for value in range(3):
                await ends(client, LARGE, value)
            assert list(box.driver.shared.pages) == ([0, 1] if name == "owner" else [0])

    played(acts)


def test_a_worker_that_can_not_map_the_memory_is_sent_what_is_in_it(played, monkeypatch):
    def refuse(_where, writable):
        raise PermissionError("not yours")

    monkeypatch.setattr(workers.link_server, "opened", refuse)

    async def acts(box, client):
        with structlog.testing.capture_logs() as logs:
            for value in range(4):
                await ends(client, LARGE, value)
        assert box.host.shared == 4 * [False]
        warned = [log["reason"] for log in logs if log["log_level"] == "warning"]
        assert warned == ["not yours", "not yours"]  # once for each piece of memory

    played(acts)


def test_an_emulated_link_carries_what_a_real_one_would(played):
    async def acts(box, client):
        for value in range(3):
            await ends(client, LARGE, value)
        assert box.host.shared == 3 * [False]

    played(acts, maps=False)


def test_a_batch_may_have_inputs_of_both_kinds(played):
    async def acts(box, client):
        for value in range(3):
            await ends(client, LARGE, value)
        held = box.driver.shared.take(10**7 - LEAST_BYTES)  # so the other's are kept elsewhere
        assert held is not None

        async def many(other: AsyncClient) -> None:
            box.host.go.clear()
            box.host.began.clear()
            asked = [asyncio.ensure_future(ends(client, LARGE, 2))]
            await until(box.host.began.is_set)
            for one in 4 * (client, other):
                asked.append(asyncio.ensure_future(ends(one, 2 * LARGE, len(asked))))
                await until(lambda: len(box.driver._pending) == len(asked))
            box.host.go.set()
            await asyncio.gather(*asked)

        for _ in range(50):  # what shares a batch is up to the policy, and to the clock
            async with AsyncClient(box.url) as other:
                await many(other)
            if any(len(set(batch)) == 2 for batch in box.host.batches):
                return
        raise AssertionError("no batch had inputs of both kinds")

    played(acts)


def test_the_memory_of_a_request_that_expired_is_not_written_while_a_worker_reads_it(played):
    async def acts(box, client):
        await ends(client, LARGE)
        await until(lambda: box.lent)
        box.host.go.clear()
        box.host.began.clear()
        asked = asyncio.ensure_future(client.infer("ends", vector(LARGE), deadline_ms=1000))
        await until(box.host.began.is_set)
        with pytest.raises(DeadlineExpired):
            await asked
        await asyncio.sleep(0.02)
        assert box.taken() == 1
        box.host.go.set()
        await until(lambda: not box.taken())

    played(acts)


def test_what_a_client_was_lent_is_unmapped_when_it_is_gone(played, monkeypatch):
    monkeypatch.setattr(shared_bodies, "TIDY_S", 0.01)

    async def acts(box, _client):
        async with AsyncClient(box.url) as client:
            for value in range(2):
                await ends(client, LARGE, value)
            assert set(box.server._pages) == set(box.driver.shared.pages) == {0, 1}
        await until(lambda: set(box.server._pages) == {0})
        assert set(box.driver.shared.pages) == {0}
        (device,) = box.driver._linked.values()
        assert device.link._mappings._told == device.link._mappings._mapped == {0}
        await until(lambda: not box.driver.shared._ended)  # without another large body

    played(acts)


def test_the_memory_of_clients_that_come_and_go_is_not_kept_by_a_worker(played):
    async def acts(box, _client):
        for _ in range(5):
            async with AsyncClient(box.url) as client:
                for value in range(2):
                    await ends(client, LARGE, value)
            await until(lambda: set(box.driver.shared.pages) == {0})
        assert len(box.server._pages) == 2  # the box's own, and the latest client's

    played(acts)


def test_a_client_for_which_no_memory_is_left_is_told_of_once(played, monkeypatch):
    async def acts(box, client):
        def refuse(_size):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(shared_bodies, "OwnPages", refuse)
        with structlog.testing.capture_logs() as logs:
            for value in range(3):
                await ends(client, LARGE, value)
        warned = [log["event"] for log in logs if log["log_level"] == "warning"]
        assert warned == ["no memory to share with a client"]

    played(acts)


def test_without_room_in_it_inputs_are_sent(played):
    async def acts(box, client):
        await ends(client, LARGE)
        await until(lambda: box.lent)
        blocks = box.lent[0]._blocks
        blocks.take(9 * LEAST_BYTES)
        for value in range(3):
            await ends(client, 2 * LARGE, value)
        assert len(blocks._taken) == 1
        await ends(client, LARGE)
        await until(lambda: len(blocks._taken) == 1)

    played(acts, size=10 * LEAST_BYTES)


def test_a_connection_that_is_lost_takes_its_memory_along(played):
    async def acts(box, client):
        for value in range(3):
            await ends(client, LARGE, value)
        box.host.go.clear()
        asked = asyncio.ensure_future(ends(client, LARGE, 7))
        await until(lambda: box.driver._pending)
        for client_of in list(box.door._connections):
            client_of._transport.abort()
        await until(lambda: len(box.driver.core.runs) == 0 or box.host.go.set() is None)
        await asked
        for value in range(3):
            await ends(client, LARGE, value)
        assert box.host.shared[-2:] == [True, True]
        assert len(box.lent) == 2
        await until(lambda: not box.lent[1]._blocks._taken)

    played(acts)


def test_many_requests_at_once_keep_their_inputs_apart(played):
    async def acts(box, client):
        rng, room = random.Random(1), asyncio.Semaphore(12)

        async def ask(value: float) -> None:
            async with room:
                size = rng.choice((2, LARGE, LARGE + 1, 3 * LARGE))
                asking = asyncio.ensure_future(ends(client, size, value))
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.random() / 100)
                    asking.cancel()
                    await asyncio.wait([asking])
                else:
                    await asking

        await asyncio.gather(*(ask(value) for value in range(400)))
        assert any(box.host.shared)
        await until(lambda: not box.taken())

    played(acts, size=40 * LEAST_BYTES)


@pytest.fixture
def sent_bytes(monkeypatch):
    """The sizes of the bodies of what a worker says."""
    sizes = []

    def heard(header: Header, body: Any, *more: Any) -> Any:
        sizes.append(0 if body is None else len(body))
        return results_from(header, body, *more)

    monkeypatch.setattr(worker_link, "results_from", heard)
    return sizes


def test_after_the_first_one_large_outputs_are_not_sent_to_the_scheduler(played, sent_bytes):
    async def acts(box, client):
        await same(client, LARGE)
        results = [await same(client, LARGE, value) for value in range(5)]
        assert sent_bytes == [4 * LARGE, 0, 0, 0, 0, 0]
        for value, result in enumerate(results):  # they are the caller's own
            assert result["y"][0] == value
            result["y"][0] = 7
        await until(lambda: not box.server._results_in._blocks._taken)
        await same(client, LARGE - 1)
        assert sent_bytes[-1] == 4 * LARGE  # with padding

    played(acts)


def test_outputs_that_nobody_has_taken_yet_are_left_alone(played, sent_bytes):
    async def acts(box, client):
        for _ in range(2):
            await same(client, LARGE)
        held: list[memoryview] = []
        on_done = box.driver.on_done

        def keep(run_id: int, results: Any, *more: Any) -> None:
            held.append(results[0][1])
            on_done(run_id, results, *more)

        box.driver.on_done = keep
        for value in range(20):
            await same(client, LARGE, value)
        assert [np.frombuffer(body, np.float32)[0] for body in held] == list(range(20))
        blocks = box.server._results_in._blocks
        assert len(blocks._taken) >= 20
        held.clear()
        await until(lambda: not blocks._taken)
        assert set(sent_bytes[1:]) == {0}

    played(acts)


def test_a_worker_whose_memory_can_not_be_opened_sends_its_outputs(played, monkeypatch, sent_bytes):
    def refuse(_where, writable):
        raise PermissionError("not yours")

    monkeypatch.setattr(worker_link, "opened", refuse)

    async def acts(box, client):
        with structlog.testing.capture_logs() as logs:
            for value in range(4):
                await same(client, LARGE, value)
        assert sent_bytes == 4 * [4 * LARGE]
        warned = [log["reason"] for log in logs if log["log_level"] == "warning"]
        assert warned == ["not yours"]

    played(acts)


def test_the_next_scheduler_reads_other_memory_than_the_last_one_may_still_read(played, sent_bytes):
    async def acts(box, client):
        for _ in range(2):
            await same(client, LARGE)
        before = box.server._results_in
        (way,) = box.driver._linked.values()
        link, lost = way.link, way.link._transport
        lost.abort()
        await until(lambda: link._transport not in (lost, None) and box.server._peer is not None)
        for value in range(3):
            await same(client, LARGE, value)
        assert box.server._results_in is not before
        assert sent_bytes == 2 * [4 * LARGE, 0] + [0]

    played(acts)


def test_a_scheduler_that_ends_during_a_run_takes_the_offer_of_memory_along(played, sent_bytes):
    async def acts(box, client):
        box.host.go.clear()
        asked = asyncio.ensure_future(same(client, LARGE))
        await until(box.host.began.is_set)
        (way,) = box.driver._linked.values()
        before = way.link._transport
        before.abort()
        await until(lambda: way.link._transport is not before)
        while box.server._peer is not None:  # another thread notices
            box.server.say("telemetry", {"t": "telemetry", "reading": {}})
        box.host.go.set()
        await asked
        for value in range(3):
            await same(client, LARGE, value)
        assert sent_bytes[-1] == 0

    played(acts)


def test_memory_beyond_what_is_kept_is_freed_everywhere_once_it_is_not_used(played, monkeypatch):
    monkeypatch.setattr(shared_pages, "KEPT_BYTES", LEAST_BYTES)
    monkeypatch.setattr(worker_link, "_LOOK_S", 0.05)
    for module in (shared_bodies, lent_memory):
        monkeypatch.setattr(module, "TIDY_S", 0.05)

    async def acts(box, client):
        def large() -> set[int]:
            ways = [box.driver.shared, box.server._results_in, *box.lent]
            return {
                number for number, way in enumerate(ways) if way._blocks and way._blocks.is_large
            }

        grew: set[int] = set()
        for value in range(1_000):  # a busy machine may free some before one looks
            await same(client, 3 * LARGE, value)
            grew |= large()
            if grew == {0, 1, 2}:
                break
        assert grew == {0, 1, 2}
        await until(lambda: not large())
        await same(client, 3 * LARGE)

    played(acts)


def test_nothing_keeps_what_a_client_was_lent_for_later(played, monkeypatch):
    monkeypatch.setattr(shared_pages, "KEPT_BYTES", LEAST_BYTES)
    monkeypatch.setattr(lent_memory, "TIDY_S", 1000)

    async def acts(box, _client):
        async with AsyncClient(box.url) as client:
            for value in range(3):
                await same(client, 3 * LARGE, value)
            lent = weakref.ref(box.lent.pop())
            await until(lambda: (found := lent()) is not None and found._will_tidy)
        await until(lambda: lent() is None)

    played(acts)


def test_an_emulated_link_carries_outputs_too(played, sent_bytes):
    async def acts(_box, client):
        for value in range(3):
            await same(client, LARGE, value)
        assert sent_bytes == 3 * [4 * LARGE]

    played(acts, maps=False)


def test_where_a_body_is_must_be_in_what_the_connection_was_lent(played):
    async def acts(box, _client):
        raw = Raw(f"{box.folder}/s")
        ask = lambda *args: asyncio.to_thread(raw.ask, *args)  # noqa: E731
        hear = lambda: asyncio.wait_for(asyncio.to_thread(raw.hear), PATIENCE_S)  # noqa: E731
        await ask({"t": "hello", "v": 1, "memory": True})
        assert (await hear())["t"] == "welcome"
        specs, body = pack_tensors(vector(LARGE))
        infer = {"t": "infer", "model": "ends", "budget_ns": 10**10, "in": specs}
        await ask({**infer, "id": 1, "at": 0})
        error = await hear()
        assert (error["code"], error["id"]) == ("invalid_input", 1)
        assert "in the 0 bytes of memory" in error["message"]
        await ask({**infer, "id": 1, "at": 0, "in": [["x", "float32", [0]]]})
        assert "in the 0 bytes of memory" in (await hear())["message"]

        await ask({**infer, "id": 2}, b"".join(body))
        memory = await hear()
        assert memory["t"] == "memory"
        assert (await hear())["t"] == "result"
        last = memory["bytes"] - LEAST_BYTES
        for wrong in (-64, 1, last + 64, 2**63, None, "0", 0.0, True):
            await ask({**infer, "id": 3, "at": wrong})
            error = await hear()
            assert (error["code"], error["id"]) == ("invalid_input", 3), wrong
        await ask({**infer, "id": 4, "at": 0}, bytes(8))
        assert "neither sent nor encoded" in (await hear())["message"]
        for header in ({"in": [["x", "float32", [2**31]]]}, {"in": 7}, {"enc": {"x": "float16"}}):
            await ask({**infer, **header, "id": 4, "at": 0})
            error = await hear()
            assert (error["code"], error["id"]) == ("invalid_input", 4), header

        await ask({**infer, "id": 5, "at": last})
        said = sorted([await hear(), await hear()], key=lambda header: header["t"])
        assert said[0] == {"t": "free", "at": [last]}
        assert (said[1]["t"], said[1]["id"]) == ("result", 5)
        # The inputs are refused, but the memory is free again all the same.
        await ask({**infer, "id": 6, "at": 64, "model": "none"})
        said = sorted([await hear(), await hear()], key=lambda header: header["t"])
        assert [header["t"] for header in said] == ["error", "free"]
        raw.peer.close()

    played(acts)


def test_many_large_inputs_that_arrive_at_once_are_not_all_copied_before_some_are_refused(played):
    two: dict[str, Any] = {**CARD, "name": "two"}
    two["signature"] = {
        "inputs": [X, {**X, "name": "z"}],
        "outputs": [{**X, "name": "y"}],
        "batched": True,
    }
    many, half = 50, 4 * LEAST_BYTES

    async def acts(box, _client):
        box.server.say("two", {"t": "catalog", "models": [CARD, SAME, two], "problems": []})
        box.server.say("2", offer_header(Offer("two", "v", "r", {1: (1000,), 4: (1000,)})))
        await until(lambda: len(box.driver.catalog.offers) == 3)
        raw = Raw(f"{box.folder}/s")
        ask = lambda *args: asyncio.to_thread(raw.ask, *args)  # noqa: E731
        hear = lambda: asyncio.to_thread(raw.hear)  # noqa: E731
        await ask({"t": "hello", "v": 1, "memory": True})
        specs, body = pack_tensors(vector(LARGE))
        infer = {"t": "infer", "model": "ends", "budget_ns": 10**11, "in": specs}
        await ask({**infer, "id": 0}, b"".join(body))
        assert [(await hear())["t"] for _ in range(3)] == ["welcome", "memory", "result"]
        specs = [["z", "float32", [half // 4]], ["x", "float32", [half // 4]]]
        asked = [{**infer, "model": "two", "in": specs, "id": n, "at": 0} for n in range(many)]
        tracemalloc.start()
        try:
            raw.peer.sendall(b"".join(encode(header)[0] for header in asked))
            heard = 0
            while heard < many:
                heard += (await hear())["t"] in ("result", "error")
            assert tracemalloc.get_traced_memory()[1] < 16 * half
        finally:
            tracemalloc.stop()
        raw.peer.close()

    played(acts, size=10 * LEAST_BYTES)


def test_a_client_that_does_not_ask_for_memory_is_lent_none(played):
    async def acts(box, _client):
        raw = Raw(f"{box.folder}/s")
        await asyncio.to_thread(raw.ask, {"t": "hello", "v": 1})
        specs, body = pack_tensors(vector(LARGE))
        infer = {"t": "infer", "id": 1, "model": "ends", "budget_ns": 10**10, "in": specs}
        await asyncio.to_thread(raw.ask, infer, b"".join(body))
        assert [(await asyncio.to_thread(raw.hear))["t"] for _ in range(2)] == ["welcome", "result"]
        raw.peer.close()

    played(acts)


def test_a_box_that_frees_what_is_not_in_use_is_not_trusted_further():
    async def main() -> None:
        shared = SharedBodies(10 * LEAST_BYTES)
        lent = borrowed(shared.pages[0].where)
        assert lent is not None
        start = lent.put([b"a" * 64, b"b" * 32], 96)
        assert start is not None
        assert bytes(shared.pages[0].block(start, 96)) == b"a" * 64 + b"b" * 32
        lent.free([start])
        with pytest.raises(KeyError):
            lent.free([start])

    asyncio.run(main())


@pytest.mark.parametrize(
    "said", [{}, {"pid": "x"}, {"pid": 1, "fd": 2**80, "inode": 0, "bytes": 1}]
)
def test_memory_that_is_not_said_where_is_not_borrowed(said):
    assert borrowed(said) is None


def test_too_much_for_the_box_is_refused_as_ever(played):
    async def acts(box, client):
        await ends(client, LARGE)
        await until(lambda: box.lent)
        with pytest.raises(InvalidInput, match="body takes"):
            await client.infer("ends", vector(11 * LARGE), deadline_ms=MINUTE_MS)
        assert not box.taken()

    played(acts, size=10 * LEAST_BYTES)
