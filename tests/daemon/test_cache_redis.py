"""The result cache over a real Redis: shared, and of no harm whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import shlex
import ssl
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import trustme

from scheduler.core.outcomes import Outcome
from scheduler.daemon.asyncio_tasks import end_tasks
from scheduler.daemon.cache.entries import Kept, pack
from scheduler.daemon.cache.redis_link import RedisLink
from tests.daemon.cache_box import Asked, Box, a_box
from tests.redis_server import RedisServer, needs_redis

pytestmark = needs_redis


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@contextlib.asynccontextmanager
async def boxes(count: int, url: str, **settings: Any):
    """Boxes that share a Redis, connected to it."""
    async with contextlib.AsyncExitStack() as stack:
        found = [await stack.enter_async_context(a_box(url=url, **settings)) for _ in range(count)]
        for box in found:
            await box.until_connected()
        yield found


@contextlib.asynccontextmanager
async def relay(
    redis: RedisServer | SimpleNamespace, delay_s: float = 0, tls: ssl.SSLContext | None = None
):
    """Another way to a Redis, slower or encrypted; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, by_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(by_s)
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", redis.port)
        writers.extend((writer, back))
        await asyncio.gather(pump(reader, back, 0), pump(there, writer, delay_s))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def names(redis: RedisServer, pattern: str = "laxity:*") -> list[bytes]:
    with redis.client() as client:
        return sorted(client.scan_iter(match=pattern))


# -- shared


@pytest.mark.parametrize("kind", ["redis", "unix"])
def test_what_one_box_worked_out_serves_the_other(redis: RedisServer, kind: str) -> None:
    async def scene() -> None:
        url = redis.url if kind == "redis" else f"unix://{redis.socket}"
        async with boxes(2, url) as (here, there):
            assert await here.ask([1, 2]).target() == "cpu:0"
            await here.until(lambda: names(redis))
            (name,) = names(redis)
            assert name.startswith(b"laxity:1:m:")
            assert await there.ask([1, 2]).target() == "cache"
            assert await there.ask([1, 2]).target() == "cache"
            assert (there.counts["hits"]["redis"], there.counts["hits"]["memory"]) == (1, 1)
            assert there.ran == 0
            assert not names(redis, "claim:*")

    asyncio.run(scene())


def test_what_is_removed_in_redis_leaves_the_memory_of_boxes(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url) as (here, there):
            for box in (here, there):
                assert (await box.ask([1]).good()).outcome is Outcome.COMPLETED
            await here.until(lambda: names(redis))
            with redis.client() as client:
                client.delete(*names(redis))
            for box in (here, there):
                await box.until(lambda box=box: box.counts["entries"] == 0)
            assert await here.ask([1]).target() == "cpu:0"
            await here.until(lambda: names(redis))
            with redis.client() as client:
                client.flushall()
            await here.until(lambda: here.counts["entries"] == 0)

    asyncio.run(scene())


def test_an_answer_is_kept_no_longer_than_redis_keeps_it(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, f"{redis.url}?protocol=2", ttl_s=0.2) as (here, there):
            assert not here.redis["invalidation"]
            assert await here.ask([1]).target() == "cpu:0"
            await asyncio.sleep(0.1)
            await there.ask([1]).good()
            await asyncio.sleep(0.12)
            await there.ask([1]).good()
            assert there.ran >= 1

    asyncio.run(scene())


def test_a_server_that_cannot_tell_of_changes_is_used_all_the_same(redis: RedisServer) -> None:
    with redis.client() as client:
        allowed = "+client|setname", "+client|setinfo"
        client.execute_command("ACL", "SETUSER", "default", "-client", *allowed)

    async def scene() -> None:
        async with boxes(2, redis.url) as (here, there):
            assert not here.redis["invalidation"]
            assert await here.ask([1]).target() == "cpu:0"
            await here.until(lambda: names(redis))
            assert await there.ask([1]).target() == "cache"

    asyncio.run(scene())


def test_a_password_opens_and_is_not_shown(redis: RedisServer) -> None:
    with redis.client() as client:
        client.config_set("requirepass", "open sesame")

    async def scene() -> None:
        url = redis.url.replace("//", "//:open%20sesame@")
        async with boxes(1, url) as (box,):
            assert "sesame" not in str(box.redis)
            assert box.redis["url"] == redis.url
        async with a_box(url=redis.url) as box:
            await box.until(lambda: "requires a password" in box.redis["problem"])
            assert await box.ask([1]).target() == "cpu:0"
            assert box.counts["skipped"]["away"] == 1

    asyncio.run(scene())


def test_a_user_may_be_allowed_only_what_the_documentation_lists(redis: RedisServer) -> None:
    docs = Path(__file__).parents[2] / "docs/cache.md"
    command = re.search(r"redis-cli (ACL SETUSER [^`]*)", docs.read_text())
    assert command is not None
    with redis.client() as client:
        client.execute_command(*shlex.split(command[1].replace("\\\n", "")))

    async def scene() -> None:
        url = redis.url.replace("//", "//laxity:PASSWORD@")
        async with boxes(2, url) as (one, other):
            assert await one.ask([1]).target() == "cpu:0"
            await other.until(lambda: names(redis))
            assert await other.ask([1]).target() == "cache"
            assert one.redis["invalidation"]
            assert not one.redis["refused"]

    asyncio.run(scene())


def test_redis_may_be_reached_by_tls(redis: RedisServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)

    async def scene() -> None:
        async with relay(redis, tls=context) as port:
            trusting = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/ca.pem"
            async with boxes(2, trusting) as (here, there):
                assert await here.ask([1]).target() == "cpu:0"
                await here.until(lambda: names(redis))
                assert await there.ask([1]).target() == "cache"
            async with a_box(url=f"rediss://127.0.0.1:{port}/0") as box:
                await box.until(lambda: "certificate verify failed" in box.redis["problem"])

    asyncio.run(scene())


# -- one run among boxes


def test_a_box_waits_for_another_that_is_at_it(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=500.0) as (here, there):
            here.holds = True
            first = here.ask([1])
            await here.until(lambda: here.runs)
            others = there.ask_all([[1]] * 2)
            await there.until(lambda: there.cache._lookups._waiting)
            here.worker.finish()
            assert await first.target() == "cpu:0"
            for one in others:
                assert await one.target() == "cache (running)"
            assert there.ran == 0
            assert not names(redis, "claim:*")

    asyncio.run(scene())


def test_a_more_urgent_request_does_not_wait_for_its_own_box(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(1, redis.url, run_ms=100.0) as (box,):
            box.holds = True
            first = box.ask([1], deadline_ms=30_000)
            await box.until(lambda: box.runs)
            second = box.ask([1], deadline_ms=20_000)
            await box.until(lambda: box.counts["misses"] == 2)
            box.holds = False
            while not (first.answers and second.answers):
                await box.until(lambda: box.runs or (first.answers and second.answers))
                if box.runs:
                    box.worker.finish()
            assert box.counts["gave_up"] == 0
            assert not box.cache._lookups._claims
            assert not names(redis, "claim:*")

    asyncio.run(scene())


def test_the_largest_answer_that_is_kept_can_be_read(redis: RedisServer) -> None:
    async def scene() -> None:
        x = np.zeros(250, np.float32)
        async with boxes(2, redis.url, max_value_kb=1) as (here, there):
            assert await here.ask(x).target() == "cpu:0"
            await here.until(lambda: names(redis))
            assert await there.ask(x).target() == "cache"
            assert await here.ask(np.zeros(251)).target() == "cpu:0"
            assert await here.ask(np.zeros(251)).target() == "cpu:0"

    asyncio.run(scene())


def test_who_waits_for_another_box_may_be_cancelled(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=1_000.0) as (here, there):
            here.holds = True
            first = here.ask([1])
            await here.until(lambda: here.runs)
            second = there.ask([1])
            await there.until(lambda: there.cache._lookups._waiting)
            there.cache.cancel(second.id)
            assert (await second.answer()).outcome is Outcome.CANCELLED
            assert not there.cache._lookups._waiting
            assert (there.redis["asking"], there.counts["held"], there.ran) == (0, 0, 0)
            here.worker.finish()
            await first.good()

    asyncio.run(scene())


def test_who_waits_behind_one_who_went_away_still_ends_in_time(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=100.0) as (here, there):
            here.holds = there.holds = True
            first = here.ask([1])
            await here.until(lambda: here.runs)
            leader = there.ask([1], deadline_ms=2_000)
            patient = there.ask([1], deadline_ms=60_000)
            urgent = there.ask([1], deadline_ms=2_500)
            await there.until(lambda: there.cache._lookups._waiting)
            there.cache.cancel(leader.id)
            ends = (Outcome.EXPIRED, Outcome.INFEASIBLE)
            assert (await urgent.answer()).outcome in ends
            assert not patient.answers
            there.holds = False
            while not patient.answers:
                await there.until(lambda: there.runs or patient.answers)
                if there.runs:
                    there.worker.finish()
            assert await patient.target() in ("cpu:0", "cache (running)")
            here.worker.finish()
            await first.good()

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["gone", "failed", "crashed"])
def test_nobody_waits_for_a_claim_that_is_over(redis: RedisServer, how: str) -> None:
    """Half of a spare time of an hour would be much longer than the answer is waited for."""

    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=1_000.0) as (here, there):
            here.holds = True
            first = here.ask([1])
            await here.until(lambda: here.runs)
            if how == "crashed":  # nobody gives it back: it ends
                with redis.client() as client:
                    client.pexpire(names(redis, "claim:*")[0], 300)
            second = there.ask([1], deadline_ms=3_600_000)
            if how != "crashed":
                await there.until(lambda: there.cache._lookups._waiting)
            if how == "gone":
                here.cache.cancel(first.id)
            elif how == "failed":
                here.worker.finish("no")
            assert await second.target() == "cpu:0"
            if here.runs:
                here.worker.finish()

    asyncio.run(scene())


def test_what_came_from_another_box_does_not_wait_for_that_box(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=1_000.0) as (here, there):
            here.holds = True
            first = here.ask([1], variant="v")
            await here.until(lambda: here.runs)
            forwarded = there.ask([1], variant="v", local=True)
            assert await forwarded.target() == "cpu:0"
            assert there.counts["gave_up"] == 0
            here.worker.finish()
            await first.good()

    asyncio.run(scene())


def test_a_claim_of_one_who_went_away_before_it_ran_is_given_back(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(1, redis.url, run_ms=1_000.0) as (box,):
            first = box.ask([1])
            lookups = box.cache._lookups
            go_on = lookups._on_end

            def cancel_then(flight: Any, kept: Any, elsewhere: bool) -> None:
                go_on(flight, kept, elsewhere)
                assert flight.claimed
                box.cache.cancel(first.id)

            lookups._on_end = cancel_then
            assert (await first.answer()).outcome is Outcome.CANCELLED
            lookups._on_end = go_on
            assert not lookups._claims
            await box.until(lambda: not names(redis, "claim:*"))
            assert await box.ask([1]).target() == "cpu:0"

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["gone", "failed", "too slow", "redis killed"])
def test_a_box_waits_for_no_other_at_its_own_cost(redis: RedisServer, how: str) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url, run_ms=1_000.0) as (here, there):
            here.holds = True
            first = here.ask([1])
            await here.until(lambda: here.runs)
            second = there.ask([1], deadline_ms=3_000)
            await there.until(lambda: there.cache._lookups._waiting)
            if how == "gone":
                here.cache.cancel(first.id)
            elif how == "failed":
                here.worker.finish("no")
            elif how == "redis killed":
                redis.kill()
            assert await second.target() == "cpu:0"
            assert there.ran == 1
            assert not there.cache._lookups._waiting
            if how != "failed":
                here.worker.finish()
            await first.answer()

    asyncio.run(scene())


# -- whatever becomes of Redis


GARBAGE: list[Any] = [b"", b"\xc1", b"null", b"\x80", b"\x96" + b"\x01" * 6, bytes(10**6), "a list"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_no_answer_and_is_replaced(redis: RedisServer, garbage: Any) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url) as (here, there):
            await here.ask([1]).good()
            await here.until(lambda: names(redis))
            (name,) = names(redis)
            with redis.client() as client:
                client.delete(name)
                if garbage == "a list":
                    client.rpush(name, "x")
                else:
                    client.set(name, garbage)
            await here.until(lambda: here.counts["entries"] == 0)
            assert await there.ask([1]).target() == "cpu:0"
            assert there.counts["invalid"] >= (garbage != b"")
            await there.until(lambda: not here.ask([1]).answers or True)
            assert await there.ask([1]).target() == "cache"
            await there.until(lambda: readable(redis, name))

    def readable(redis: RedisServer, name: bytes) -> bool:
        with redis.client() as client:
            return bool(client.type(name) == b"string" and client.strlen(name) < 1000)

    asyncio.run(scene())


def test_another_questions_answer_is_garbage(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url) as (here, there):
            await here.ask([1]).good()
            await here.until(lambda: names(redis))
            (one,) = names(redis)
            await here.ask([2]).good()
            await here.until(lambda: len(names(redis)) == 2)
            (two,) = set(names(redis)) - {one}
            forged = Kept([["y", "float32", [1]]], memoryview(bytes(4)), "v", "onnxruntime")
            with redis.client() as client:
                client.copy(two, one, replace=True)
                client.set(two, pack(bytes(32), forged))
            for x in (1, 2):
                assert await there.ask([x]).target() == "cpu:0"
            assert there.counts["invalid"] >= 2

    asyncio.run(scene())


def test_a_full_redis_costs_hits_alone() -> None:
    server = RedisServer("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")

    async def scene() -> None:
        async with boxes(1, server.url) as (box,):
            for number in range(40):
                x = np.full(40_000, number, np.float32)
                assert await box.ask(x).target() == "cpu:0"
                assert await box.ask(x).target() == "cache"
            await box.until(lambda: box.redis["refused"])
            assert box.redis["open"]
            assert "maxmemory" in box.redis["refusal"]
            with server.client() as client:
                client.config_set("maxmemory", "100mb")
            await box.ask([1]).target()
            await box.until(lambda: not box.redis["refusal"])

    try:
        asyncio.run(scene())
    finally:
        server.close()


async def play(box: Box, seconds: float, first: int, deadline_ms: float) -> list[Asked]:
    """Requests every 2 ms, half of them for what was asked before."""
    asked: list[Asked] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        number = first + len(asked) - len(asked) % 2
        asked.append(box.ask([number], deadline_ms=deadline_ms))
        await asyncio.sleep(0.002)
    return asked


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_no_request_is_lost_or_late_because_redis_is(redis: RedisServer, how: str) -> None:
    async def scene() -> None:
        async with boxes(1, redis.url, timeout_ms=100.0) as (box,):
            asked = await play(box, 0.3, 0, 3_000)
            if how == "killed":
                redis.kill()
            else:
                redis.hang()
            asked += await play(box, 0.6, 10_000, 3_000)
            await box.until(lambda: not box.redis["open"])
            skipped = box.counts["skipped"]["away"]
            asked += await play(box, 0.1, 20_000, 3_000)
            assert box.counts["skipped"]["away"] > skipped
            if how == "killed":
                redis.start()
            else:
                redis.go_on()
            await box.until_connected()
            asked += await play(box, 0.2, 30_000, 3_000)
            for one in asked:
                await one.good()
            assert box.redis["losses"] >= 1
            await box.until(lambda: names(redis))

    asyncio.run(scene())


def test_a_link_that_is_lost_keeps_nothing_of_what_was_asked_over_it(redis: RedisServer) -> None:
    """Else a Redis that fails again and again fills the memory with large answers."""

    class Caller:
        def __init__(self) -> None:
            self.told = asyncio.Event()

        def take(self, _: Any) -> None:
            self.told.set()

    class Nobody:
        def on_open(self) -> None: ...

        def on_lost(self) -> None: ...

        def on_changed(self, names: Any) -> None: ...

    async def scene() -> None:
        link = RedisLink(redis.url, 0.05, Nobody())
        keeping = asyncio.create_task(link.keep_connected())
        while not link.open:
            await asyncio.sleep(0.005)
        redis.hang()
        caller = Caller()
        kept = weakref.ref(caller)
        link.send([("SET", "name", b"value")], caller.take)
        await caller.told.wait()
        del caller
        for _ in range(100):
            if kept() is None:
                break
            await asyncio.sleep(0.01)
        is_kept = kept() is not None
        await end_tasks([keeping])
        assert link.losses == 1
        assert not is_kept

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()
        redis.go_on()


def test_redis_is_not_asked_where_it_takes_too_much_of_the_budget(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(1, redis.url, run_ms=50.0) as (box,):
            link = box.cache._lookups.shared.link
            link._latency_ns.extend([10_000_000] * 64)
            assert await box.ask([1], deadline_ms=80).answer()
            assert box.counts["skipped"]["budget"] == 1
            await box.ask([2], deadline_ms=20_000).good()
            assert box.counts["skipped"]["budget"] == 1

    asyncio.run(scene())


def test_a_slow_redis_makes_nobody_late(redis: RedisServer) -> None:
    async def scene() -> None:
        async with (
            relay(redis, delay_s=0.1) as port,
            boxes(1, f"redis://127.0.0.1:{port}/0") as (box,),
        ):
            hurried = [box.ask([number], deadline_ms=300) for number in range(5)]
            patient = [box.ask([number], deadline_ms=20_000) for number in range(5, 10)]
            for one in hurried:
                await one.answer()
            for one in patient:
                await one.good()
            assert box.counts["skipped"]["budget"] == 5
            await box.until(lambda: len(names(redis)) == 10)

    asyncio.run(scene())


def test_a_slow_answer_is_not_waited_for_and_serves_the_next(redis: RedisServer) -> None:
    async def scene() -> None:
        async with boxes(2, redis.url) as (here, there):
            await here.ask([1]).good()
            await here.until(lambda: names(redis))
            redis.hang()
            one = there.ask([1], deadline_ms=2_000)
            assert await one.target() == "cpu:0"
            assert there.counts["gave_up"] == 1
            redis.go_on()

    asyncio.run(scene())


def test_a_node_of_a_redis_cluster_says_so() -> None:
    one, two = (RedisServer("--cluster-enabled", "yes") for _ in range(2))

    async def scene() -> None:
        with one.client() as here, two.client() as there:
            here.execute_command("CLUSTER", "ADDSLOTS", 0)
            there.execute_command("CLUSTER", "ADDSLOTS", *range(1, 1 << 14))
            here.execute_command("CLUSTER", "MEET", "127.0.0.1", two.port)
            async with boxes(1, one.url) as (box,):
                await box.until(lambda: here.cluster("INFO")["cluster_state"] == "ok")
                await box.ask([1]).good()
                await box.until(lambda: "Redis Cluster" in box.redis["refusal"])
                assert box.counts["invalid"] == 0

    try:
        asyncio.run(scene())
    finally:
        one.close()
        two.close()


def test_a_redis_that_has_become_a_replica_is_left_for_its_successor(redis: RedisServer) -> None:
    successor = RedisServer()
    where = SimpleNamespace(port=redis.port)

    async def scene() -> None:
        async with relay(where) as port, boxes(1, f"redis://127.0.0.1:{port}/0") as (box,):
            await box.ask([1]).good()
            await box.until(lambda: names(redis))
            where.port = successor.port
            with redis.client() as client:
                client.replicaof("127.0.0.1", str(successor.port))
            await box.ask([2]).good()
            await box.until(lambda: box.redis["losses"] == 1 and box.redis["open"])
            await box.ask([3]).good()
            await box.until(lambda: names(successor))
            assert box.redis["refusal"] == ""

    try:
        asyncio.run(scene())
    finally:
        successor.close()


# -- a central Redis


def test_a_central_redis_gets_all_of_it_even_after_an_absence(redis: RedisServer) -> None:
    central = RedisServer()
    central.kill()

    async def scene() -> None:
        async with boxes(1, redis.url, central_url=central.url) as (box,):
            for number in range(5):
                await box.ask([number]).good()
            await box.until(lambda: box.counts["central"]["waiting_bytes"] > 0)
            central.start()
            await box.until(lambda: box.counts["central"]["written"] == 5)
            assert box.counts["central"]["waiting_bytes"] == 0
            assert names(central) == names(redis)
        async with boxes(1, central.url) as (far,):
            assert await far.ask([3]).target() == "cache"

    try:
        asyncio.run(scene())
    finally:
        central.close()


def test_what_waits_for_a_central_redis_is_bounded() -> None:
    central = RedisServer()
    central.kill()

    async def scene() -> None:
        async with a_box(central_url=central.url, central_mb=1) as box:
            for number in range(10):
                await box.ask(np.full(40_000, number, np.float32)).good()
            about = box.counts["central"]
            assert about["waiting_bytes"] <= 1_000_000
            assert about["dropped"] == 4
            central.start()
            await box.until(lambda: box.counts["central"]["written"] == 6)

    try:
        asyncio.run(scene())
    finally:
        central.close()


def test_a_link_that_fails_by_a_fault_of_its_own_is_logged(monkeypatch):
    async def keep_connected(_link: RedisLink) -> None:
        raise RuntimeError("a fault")

    async def play() -> None:
        with structlog.testing.capture_logs() as logs:
            async with a_box(url="redis://127.0.0.1:1") as box:
                await box.until(lambda: "the link to Redis" in [told.get("task") for told in logs])

    monkeypatch.setattr(RedisLink, "keep_connected", keep_connected)
    asyncio.run(play())
