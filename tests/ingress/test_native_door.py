"""What a tenant hears at the native door, and what it may do there."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import uvloop

from scheduler import (
    AsyncClient,
    Forbidden,
    InvalidInput,
    LaxityError,
    ModelNotFound,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from scheduler.client.tasks import Question
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.driver import Driver
from scheduler.durable import desk as desk_module
from scheduler.durable import waits
from scheduler.durable.database import Database
from scheduler.durable.desk import TaskDesk
from scheduler.durable.records import Bounds, Ended
from scheduler.ingress import admission, inflow, native_connection, restoring
from scheduler.ingress.model_shelf import ModelShelf
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.task_door import TaskDoor
from scheduler.tenants import Access, Scope, Tenant, hash_of, new_token
from scheduler.texts import check_utf8
from scheduler.wire import PREFIX, VERSION, FrameLimits, Tensors, encode
from tests.neighbours.boxes import card

TOKENS = {name: new_token() for name in ("all", "line", "chief")}
ALL: tuple[Scope, ...] = ("infer", "tasks", "metrics", "peer", "admin")
X = {"x": np.zeros(4, np.float32)}


def tenant(name: str, *scopes: Scope, models: tuple[str, ...] = ("*",)) -> Tenant:
    return Tenant(name=name, tokens=(hash_of(TOKENS[name]),), scopes=scopes, models=models)


ACCESS = Access(
    [
        tenant("all", *ALL),
        tenant("line", "infer", models=("line-*",)),
        tenant("chief", *ALL, models=("line-*",)),
    ]
)


@dataclass
class Box:
    door: NativeDoor
    url: str

    def client(self, name: str) -> AsyncClient:
        return AsyncClient(self.url, token=TOKENS[name])


@asynccontextmanager
async def a_box(folder: Path, held_bytes: int = 10**8) -> AsyncIterator[Box]:
    """A native door with four models and no device that runs them."""
    driver = Driver(limits=Limits(bytes=held_bytes))
    problems = [("secret2", "no weights"), ("line-b", "no weights either")]
    driver.catalog.learn("cpu:0", [card("line-a"), card("secret")], problems)
    rules = DoorRules("s", ACCESS, FrameLimits(), 8, 10**12)
    door = NativeDoor(driver, rules, lambda: {**driver.status(), "draining": False})
    door.shelf = ModelShelf(folder)
    server = await asyncio.get_running_loop().create_unix_server(door, f"{folder}/s")
    try:
        yield Box(door, f"unix://{folder}/s")
    finally:
        server.close()
        door.close()
        await driver.close()
        await until(lambda: not door._connections)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test on such a loop as the scheduler's.

    On asyncio's own, `writelines` never pauses a protocol in Python 3.12.0 to 3.12.8 and 3.13.0 to
    3.13.1 (CVE-2024-12254).
    """
    uvloop.run(asyncio.wait_for(test(), 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def said(asked: Any) -> str:
    """The words of the error that something ends with."""
    with pytest.raises(LaxityError) as error:
        await asked
    return f"{error.value} {error.value.detail}"


def test_a_tenant_hears_of_its_own_models_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            async with box.client("all") as client:
                told = await client.models()
                assert [model["name"] for model in told["models"]] == ["line-a", "secret"]
                assert [each["model"] for each in told["problems"]] == ["secret2", "line-b"]
                for model in ("line-a", "secret"):
                    with pytest.raises(Unavailable):
                        await client.infer(model, X, deadline_ms=20_000)
                with pytest.raises(ModelNotFound, match="'secret2' can't be served: no weights"):
                    await client.infer("secret2", X, deadline_ms=20_000)
                assert [each["name"] for each in await client.statistics()] == ["line-a", "secret"]
            async with box.client("line") as client:
                told = await client.models()
                assert [model["name"] for model in told["models"]] == ["line-a"]
                assert [each["model"] for each in told["problems"]] == ["line-b"]
                with pytest.raises(ModelNotFound, match="'line-b' can't be served: no weights"):
                    await client.infer("line-b", X, deadline_ms=20_000)
                assert [each["name"] for each in await client.statistics()] == ["line-a"]
                # Near what there is, or far from it.
                for model in ("line-", "secret", "secret2", "secre"):
                    words = await said(client.infer(model, X, deadline_ms=20_000))
                    assert (
                        words == f"model {model!r} is not in the repository {{'model': {model!r}}}"
                    )

    run(test)


def test_how_the_box_is_needs_the_scope_for_its_metrics(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            async with box.client("line") as client:
                with pytest.raises(Forbidden, match="'line' does not have the scope 'metrics'"):
                    await client.status()
            async with box.client("all") as client:
                assert (await client.status())["held"] == 0

    run(test)


def test_a_variant_of_a_target_beyond_the_box_can_be_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box, box.client("all") as client:
            box.door.driver.catalog.add_offer("far", Offer("line-a", "there", "r", {1: (1,)}))
            (described,) = [m for m in (await client.models())["models"] if m["name"] == "line-a"]
            for variant in described["variants"]:
                with pytest.raises(Unavailable):
                    await client.infer("line-a", X, deadline_ms=20_000, variant=variant["name"])
            words = await said(client.infer("line-a", X, deadline_ms=20_000, variant="x"))
            assert words.startswith("variant 'x' is not in model 'line-a' (there are: there, v)")

    run(test)


def test_over_the_network_no_name_has_a_file_or_module_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    file = tmp_path / "own_for_the_door.py"
    file.write_text(
        f"open({str(ran)!r}, 'w').close()\n"
        "class Own:\n    def decide(self, view): return ()\n"
        "def make(text='x'): return Own()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = "own_for_the_door:make"
    named: list[tuple[str, dict[str, Any]]] = [
        *((name, {}) for name in (str(file), f"{file}:Own", file.name, module)),
        *(("spill", {"inner": inner}) for inner in (str(file), module, {"name": str(file)})),
        ("spill", {"inner": {"name": module, "text": "y"}}),
        ("hedge", {"inner": {"name": "spill", "inner": {"name": module}}}),
        ("goodput", {"quantile": {"name": module}}),
    ]

    async def test() -> None:
        monkeypatch.chdir(tmp_path)
        async with a_box(tmp_path) as box, box.client("chief") as chief:
            for name, options in named:
                with pytest.raises(InvalidInput, match="can be named in the configuration only"):
                    await chief._take(Question("policy", {"name": name, "options": options}))
            spill = {"name": "spill", "options": {"inner": {"name": "edf", "quantile": 0.9}}}
            await chief._take(Question("policy", spill))
            assert box.door.driver.policy == ("spill", spill["options"])

    run(test)
    assert not ran.exists()


def test_what_is_refused_before_it_is_queued_counts_as_failed(tmp_path: Path) -> None:
    rare = Tenant(name="line", tokens=(hash_of(TOKENS["line"]),), rate_per_s=1e-6, burst=1)

    async def test() -> None:
        async with a_box(tmp_path) as box, box.client("all") as boss:
            box.door.take_access(Access([rare, tenant("all", *ALL)]))
            async with box.client("line") as client:
                for error in (Unavailable, Overloaded, Overloaded, InvalidInput):
                    x = X if error is not InvalidInput else {"y": X["x"]}
                    with pytest.raises(error):
                        await client.infer("secret", x, deadline_ms=20_000)
                await boss._take(Question("unload", {"model": "line-a"}))
                with pytest.raises(Unavailable, match="unloaded"):
                    await client.infer("line-a", X, deadline_ms=20_000, variant="v")
            counted = {
                (each["name"], each["version"]): each["inference_stats"]["fail"]["count"]
                for each in await boss.statistics()
            }
            assert counted == {("secret", ""): 3, ("line-a", "v"): 1}

    run(test)


def test_orders_concern_the_models_of_who_gives_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box, box.client("chief") as client:
            for kind in ("unload", "load", "model_files"):
                question = Question(kind, {"model": "secret"})
                with pytest.raises(ModelNotFound):
                    await client._take(question)
            assert box.door.admission.is_loaded("secret")
            await client._take(Question("unload", {"model": "line-a"}))
            assert not box.door.admission.is_loaded("line-a")

    run(test)


def test_who_says_no_hello_in_time_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the box that was held up, with the hello at its door."""
    monkeypatch.setattr(native_connection, "HELLO_S", 0.01)

    async def test() -> None:
        async with a_box(tmp_path):
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
            said = await reader.read()
            writer.close()
            header = msgpack.unpackb(said[PREFIX.size :])
            assert (header["t"], header["id"], header["code"]) == ("error", None, "unavailable")

    run(test)


def test_who_is_refused_is_forgotten_though_nothing_else_happens(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            for _ in range(3):
                reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"protocol" in await reader.read()
                writer.close()
            assert box.door.unsent == []

    run(test)


def test_who_says_nothing_keeps_nobody_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box, box.client("all") as first:
            silent = [await asyncio.open_unix_connection(f"{tmp_path}/s") for _ in range(9)]
            async with box.client("line"), box.client("chief"):
                await first.status()  # who is known stays
                for reader, _ in silent[:3]:
                    assert (
                        b"8 connections are open already (limits.connections)"
                        in await reader.read()
                    )
            for _, writer in silent:
                writer.close()

    run(test)


def test_a_tenant_with_many_connections_keeps_no_other_out(tmp_path: Path) -> None:
    """It has half of them, unless its own say otherwise, and one that has gone makes room."""
    both = tenant("all", *ALL), tenant("line", "infer")
    fewer = [both[0].model_copy(update={"connections": 2}), both[1]]

    async def test() -> None:
        async with a_box(tmp_path) as box:
            for access, most in ((Access(both), 4), (Access(fewer), 2)):
                box.door.take_access(access)
                async with AsyncExitStack() as filled:
                    for _ in range(most):
                        await filled.enter_async_context(box.client("all"))
                    turned_away = box.client("all")
                    words = await said(turned_away.__aenter__())
                    await turned_away.close()
                    assert f"lets nobody in for now: 'all' may have {most} connections" in words
                    assert "tenants_file" in words
                    await filled.enter_async_context(box.client("line"))
                await until(lambda: not box.door._connections)

    run(test)


def test_who_is_not_in_yet_takes_next_to_no_memory(tmp_path: Path) -> None:
    """Of handshakes of TLS there may be any number: nobody counts them."""

    async def test() -> None:
        async with a_box(tmp_path) as box:
            tracemalloc.start()
            waiting = [box.door() for _ in range(10)]
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert size / len(waiting) < 20_000

    run(test)


def test_the_boxes_own_doors_find_room_where_clients_fill_it(tmp_path: Path) -> None:
    async def test() -> None:
        loop, path = asyncio.get_running_loop(), f"{tmp_path}/doors"
        async with a_box(tmp_path) as box, AsyncExitStack() as stack:
            for number in range(8):
                await stack.enter_async_context(box.client("all" if number % 2 else "chief"))
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
            assert b"8 connections are open already (limits.connections)" in await reader.read()
            writer.close()
            inner = await loop.create_unix_server(box.door.for_doors, path)
            stack.callback(inner.close)
            door = await stack.enter_async_context(AsyncClient(f"unix://{path}"))
            assert await door.models()

    run(test)


@dataclass
class RawClient:
    """Writes what no client would."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def of(cls, folder: Path, name: str) -> RawClient:
        raw = cls(*await asyncio.open_unix_connection(f"{folder}/s"))
        raw.writer.writelines(encode({"t": "hello", "v": 1, "token": TOKENS[name]}))
        assert (await raw.told())["t"] == "welcome"
        return raw

    def begin(self, announced: int, body: bytes) -> None:
        """The header of a request, and so much of the body that it announces."""
        specs = [["x", "float32", [4]]]
        infer = {"t": "infer", "id": 1, "model": "line-a", "budget_ns": 10**9, "in": specs}
        header = msgpack.packb(infer)
        self.writer.write(PREFIX.pack(len(header), announced) + header + body)

    async def told(self) -> dict[str, Any]:
        size, body = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
        told: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(size))
        await self.reader.readexactly(body)
        return told

    async def task(self, name: str) -> dict[str, Any]:
        """The answer to a wait for the end of a task."""
        ask = {"t": "task_result", "id": 1, "task": name, "wait_ns": 30 * 10**9}
        self.writer.writelines(encode(ask))
        return await self.told()


def test_a_body_counts_as_it_comes_and_not_as_it_is_announced(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path, held_bytes=1_000_000) as box:
            silent = [await RawClient.of(tmp_path, "line") for _ in range(4)]
            for client in silent:
                client.begin(announced=900_000, body=b"a")
            other = await RawClient.of(tmp_path, "all")
            other.begin(100_000, bytes(100_000))
            assert (await other.told())["code"] == "invalid_input"  # and not "overloaded"
            for client in silent:
                client.writer.write(bytes(800_000))
            for client in silent:
                client.writer.write(bytes(100_000 - 1))
            told = [await client.told() for client in silent]
            full = [each["message"] for each in told if each["code"] == "overloaded"]
            assert full
            assert all("(limits.queue_mb)" in message for message in full)
            assert box.door.reading.count == 0
            for client in (*silent, other):
                client.writer.close()

    run(test)


def test_a_tenant_has_its_share_of_the_memory_for_bodies(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path, held_bytes=1_000_000) as box:
            small = tenant("line", "infer").model_copy(update={"queue_share": 0.25})
            box.door.take_access(Access([small, tenant("all", *ALL)]))
            for name, code in (("line", "overloaded"), ("all", "invalid_input")):
                client = await RawClient.of(tmp_path, name)
                client.begin(400_000, bytes(200_000))
                await until(lambda: box.door.reading.count == 200_000)
                client.writer.write(bytes(100_000))
                while box.door.reading.count != (300_000 if code == "invalid_input" else 0):
                    await asyncio.sleep(0)
                client.writer.write(bytes(100_000))
                assert (await client.told())["code"] == code
                assert box.door.reading.count == 0
                client.writer.close()

    run(test)


def test_a_body_that_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflow, "STALL_S", 0.05)

    async def test() -> None:
        async with a_box(tmp_path) as box:
            client = await RawClient.of(tmp_path, "all")
            client.begin(100_000, bytes(50_000))
            told = await client.told()
            assert (told["id"], told["code"]) == (None, "unavailable")
            assert await client.reader.read() == b""
            assert box.door.reading.count == 0
            client.writer.close()

    run(test)


class Asked:
    """What `status` answers, and how often it was asked."""

    def __init__(self, box: Box, answer: str = "") -> None:
        self.count = 0
        self._answer = answer
        box.door.status = self

    def __call__(self) -> str:
        self.count += 1
        return self._answer


def test_who_asks_much_at_once_lets_others_have_their_turn(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            asked = Asked(box)
            eager, other = [await RawClient.of(tmp_path, "all") for _ in range(2)]
            eager.writer.writelines(encode({"t": "status", "id": n})[0] for n in range(500))
            await until(lambda: asked.count > 0)
            other.writer.writelines(encode({"t": "models", "id": 1}))
            assert (await other.told())["t"] == "reply"
            assert asked.count < 250
            assert [(await eager.told())["id"] for _ in range(500)] == list(range(500))
            eager.writer.writelines(encode({"t": "status", "id": 500}))
            assert (await eager.told())["id"] == 500
            for client in (eager, other):
                client.writer.close()

    run(test)


def test_a_tenant_has_one_turn_for_all_its_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            loop, turn = asyncio.get_running_loop(), 0
            asked = Asked(box)
            at: Counter[int] = Counter()

            def status() -> str:
                at[turn] += 1
                return asked()

            def count_turns() -> None:
                nonlocal turn
                turn += 1
                loop.call_soon(count_turns)

            box.door.status = status
            many = [await RawClient.of(tmp_path, "all") for _ in range(4)]
            count_turns()
            for client in many:
                client.writer.writelines(encode({"t": "status", "id": n})[0] for n in range(50))
            for client in many:
                assert [(await client.told())["id"] for _ in range(50)] == list(range(50))
                client.writer.close()
            assert sum(at.values()) == 200
            assert max(at.values()) <= 2, "the count may change before or after in a turn"

    run(test)


def test_who_reads_no_answers_has_no_more_worked_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            asked = Asked(box, "how it is " * 1_000)
            client = await RawClient.of(tmp_path, "all")
            client.writer.writelines(encode({"t": "status", "id": n})[0] for n in range(2_000))
            for _ in range(4_000):
                await asyncio.sleep(0)
            assert 0 < asked.count < 1_000
            assert [(await client.told())["id"] for _ in range(2_000)] == list(range(2_000))
            client.writer.close()

    run(test)


def test_inputs_are_had_back_for_as_many_requests_as_a_tenant_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had_back: list[Tensors] = []
    packed = restoring._packed

    def counted(tensors: Tensors, work: Any) -> Any:
        had_back.append(tensors)
        return packed(tensors, work)

    monkeypatch.setattr(restoring, "_packed", counted)

    async def test() -> None:
        async with a_box(tmp_path) as box:
            slow = tenant("line", "infer").model_copy(update={"rate_per_s": 1e-6, "burst": 2})
            box.door.take_access(Access([slow]))
            client = await RawClient.of(tmp_path, "line")
            infer = {"t": "infer", "model": "line-a", "budget_ns": 10**9, "enc": {"x": "float16"}}
            infer["in"] = [["x", "float16", [4]]]
            for number in range(5):
                client.writer.writelines(encode({**infer, "id": number}, [bytes(8)]))
            codes = {told["id"]: told["code"] for told in [await client.told() for _ in range(5)]}
            assert [codes[n] for n in range(5)] == ["unavailable"] * 2 + ["overloaded"] * 3
            assert len(had_back) == 2
            assert box.door.admission.quotas.held() == {"line": 0}
            client.writer.close()

    run(test)


def test_texts_are_read_for_as_many_requests_as_a_tenant_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(name: str, array: Any) -> None:
        read.append(name)
        check_utf8(name, array)

    monkeypatch.setattr(admission, "check_utf8", counted)
    words = Signature((TensorSpec("text", "string", (1,)),), (), batched=False)

    async def test() -> None:
        async with a_box(tmp_path) as box:
            catalog = box.door.driver.catalog
            catalog.learn("cpu:1", [replace(card("line-t"), signature=words)], [])
            slow = tenant("line", "infer").model_copy(update={"rate_per_s": 1e-6, "burst": 2})
            box.door.take_access(Access([slow]))
            client = await RawClient.of(tmp_path, "line")
            infer = {
                "t": "infer",
                "model": "line-t",
                "budget_ns": 10**9,
                "in": [["text", "S1", [1]]],
            }
            for number in range(5):
                client.writer.writelines(encode({**infer, "id": number}, [b"\xff"]))
            codes = {told["id"]: told["code"] for told in [await client.told() for _ in range(5)]}
            assert [codes[n] for n in range(5)] == ["invalid_input"] * 2 + ["overloaded"] * 3
            assert read == ["text"] * 2
            assert box.door.admission.quotas.held() == {"line": 0}
            client.writer.close()

    run(test)


def test_who_is_in_is_looked_at_again_when_the_tenants_change(tmp_path: Path) -> None:
    """A token that no longer counts ends its connection; other changes hold from then on."""

    async def test() -> None:
        async with (
            a_box(tmp_path) as box,
            box.client("chief") as chief,
            box.client("line") as line,
        ):
            await chief.status()
            box.door.take_access(Access([tenant("line", "infer", "metrics")]))
            with pytest.raises(Unauthorized):
                await chief.status()
            await line.status()
            assert len((await line.models())["models"]) == 2

    run(test)


def test_a_box_that_may_no_longer_be_one_is_told_nothing_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box, box.client("all") as client:
            await client.status()
            (connection,) = box.door._connections
            connection.caller.is_box = True
            box.door.take_access(Access([tenant("all", *ALL)]))
            await client.status()
            box.door.take_access(Access([tenant("all", "infer", "metrics")]))
            await until(lambda: connection not in box.door._connections)

    run(test)


def test_a_stranger_hears_no_goodbye_in_place_of_a_welcome(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
            await until(lambda: bool(box.door._connections))
            box.door.stop_admitting()
            writer.write(encode({"t": "hello", "v": VERSION, "token": TOKENS["all"]})[0])
            said = b""
            while said.count(b"welcome") + said.count(b"goodbye") < 2:
                said += await reader.read(1000)
            assert said.index(b"welcome") < said.index(b"goodbye")
            writer.close()

    run(test)


def test_what_was_written_goes_out_before_it_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_box(tmp_path) as box:
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
            await until(lambda: bool(box.door._connections))
            (connection,) = box.door._connections
            assert connection._transport is not None
            connection._transport.write(bytes(10**7))
            box.door.close()
            await box.door.wait_closed(0.05)
            assert connection in box.door._connections
            reading = asyncio.ensure_future(reader.read())
            await box.door.wait_closed(60)
            assert connection not in box.door._connections
            assert len(await reading) == 10**7
            writer.close()

    run(test)


RESULT_BYTES = 200_000


@asynccontextmanager
async def tasks_of(box: Box, folder: Path, count: int) -> AsyncIterator[TaskDesk]:
    """Has a box keep tasks, of which so many wait, named by number."""
    desk = TaskDesk(box.door.driver, folder / "tasks", Bounds(), lambda model: True)
    box.door.tasks = TaskDoor(desk, box.door.admission, Bounds(), 10**15)
    async with AsyncClient(box.url, token=TOKENS["all"]) as client:
        for number in range(count):
            await client.submit("line-a", X, deadline_s=3600, durable=True, id=str(number))
    try:
        yield desk
    finally:
        desk.stop()
        await desk.close()


async def complete(desk: TaskDesk, seq: int) -> None:
    """A task ends with a large result, as when it has run."""
    out = [["x", "uint8", [RESULT_BYTES]]]
    header = {"outcome": "completed", "out": out, "timing": [0, 0, 0, 0]}
    ended = Ended(seq, Outcome.COMPLETED, "", 10**15, header, memoryview(bytes(RESULT_BYTES)))
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    desk._store.write(lambda db: db.end(ended), written.set_result)
    assert await written
    desk._feeder.forget(seq)
    desk._waits.ended(seq)


def test_results_that_nobody_reads_take_no_more_than_the_memory_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "FETCHED_BYTES", 8 * RESULT_BYTES)
    count = 20
    read: list[int] = []
    result = Database.result

    def counted(database: Database, seq: int) -> Any:
        read.append(seq)
        return result(database, seq)

    monkeypatch.setattr(Database, "result", counted)

    async def test() -> None:
        async with a_box(tmp_path) as box, tasks_of(box, tmp_path, count) as desk:
            client = await RawClient.of(tmp_path, "all")
            for number in range(count):
                ask = {"t": "task_result", "id": number, "task": str(number), "wait_ns": 30 * 10**9}
                client.writer.writelines(encode(ask))
            await until(lambda: desk._waits._held._held.get("all", 0) == count)
            for seq in range(1, count + 1):
                await complete(desk, seq)
            await until(lambda: not desk._waits._held._held)
            lookup: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            desk._store.read(lambda db: db.use(), lookup.set_result, "all")
            await lookup  # what was asked for before has been answered
            assert len(read) <= 8  # of which two fit into what the kernel and the client buffer
            other = await RawClient.of(tmp_path, "all")
            assert (await other.task("0"))["t"] == "result"
            other.writer.close()
            told = [await client.told() for _ in range(count)]
            assert [each["t"] for each in told].count("result") < len(read)
            for each in told:
                while each["t"] != "result":
                    assert (each["code"], each["detail"]) == ("overloaded", {"limit": "bytes"})
                    each = await client.task(str(each["id"]))
            await until(lambda: not desk._fetching._held)
            client.writer.close()

    run(test)


def test_who_is_gone_waits_for_no_task_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "MOST_WAITS", 3)

    async def test() -> None:
        async with a_box(tmp_path) as box, tasks_of(box, tmp_path, 4) as desk:
            for seq in (1, 2, 3):
                await complete(desk, seq)
            client = await RawClient.of(tmp_path, "all")
            for id_, name in enumerate("012333"):
                ask = {"t": "task_result", "id": id_, "task": name, "wait_ns": 30 * 10**9}
                client.writer.writelines(encode(ask))
            await until(
                lambda: bool(desk._fetching._held) and desk._waits._held._held.get("all", 0) == 3
            )
            client.writer.transport.abort()
            await until(lambda: not desk._waits._held._held and not desk._fetching._held)
            assert desk._waits._waiters == {}
            other = await RawClient.of(tmp_path, "all")
            waiting = asyncio.ensure_future(other.task("3"))
            await until(lambda: bool(desk._waits._waiters))
            await complete(desk, 4)
            assert (await waiting)["t"] == "result"
            other.writer.close()

    run(test)
