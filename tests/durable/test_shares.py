"""Tenants that read durable tasks in a loop leave others theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.durable import store as stores
from scheduler.durable.database import Database
from scheduler.durable.records import Bounds
from scheduler.durable.shares import Shares
from scheduler.durable.store import LOOKS_AT_ONCE, Store
from scheduler.errors import Overloaded


@asynccontextmanager
async def held_store(folder: Path) -> AsyncIterator[tuple[Store, threading.Event]]:
    """A store whose reader looks at nothing until it is let go."""
    loop = asyncio.get_running_loop()
    store, begun, gate = Store(folder, Bounds(), loop), asyncio.Event(), threading.Event()

    def hold(_: Database) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    store.read(hold, lambda _: None, "much")
    await begun.wait()
    try:
        yield store, gate
    finally:
        gate.set()
        await loop.run_in_executor(None, store.close)


def test_who_asks_for_little_waits_for_few_looks_of_who_asks_for_much(tmp_path: Path) -> None:
    async def scene() -> None:
        async with held_store(tmp_path / "tasks") as (store, gate):
            told: list[str] = []
            ended = asyncio.Event()

            def note(who: str) -> Any:
                def then(_: Any) -> None:
                    told.append(who)
                    if len(told) == 1_002:
                        ended.set()

                return then

            for _ in range(1_000):
                store.read(Database.clock, note("much"), "much")
            store.read(Database.clock, note("little"), "little")
            store.read(Database.clock, note("the box"))
            gate.set()
            await ended.wait()
            assert told.index("little") <= 2 * LOOKS_AT_ONCE
            assert told.index("the box") <= 2 * LOOKS_AT_ONCE

    asyncio.run(scene())


def test_who_asks_for_more_than_can_be_kept_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with held_store(tmp_path / "tasks") as (store, _):
            found: dict[str, list[Any]] = {"much": [], "little": []}
            for who in ("much", "much", "much", "much", "little"):
                store.read(Database.clock, found[who].append, who)
            assert [type(value) for value in found["much"]] == [Overloaded] * 2
            assert found["little"] == []

    monkeypatch.setattr(stores, "MOST_LOOKS", 2)
    asyncio.run(scene())


@settings(deadline=None)
@given(st.integers(1, 100), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60))))
def test_one_alone_may_have_all_and_nobody_is_kept_out(most: int, wanted: Any) -> None:
    shares, held = Shares(), dict[str, list[int]]()
    for tenant, amount in wanted:
        own = held.get(tenant, [])
        others = sum(any(amounts) for name, amounts in held.items() if name != tenant)
        given = shares.take(tenant, amount, most)
        if not sum(own) or (not others and sum(own) + amount <= most):
            assert given
        if sum(own) and others and sum(own) + amount > most // 2:
            assert not given
        if given:
            held.setdefault(tenant, []).append(amount)
        elif own:
            shares.give_back(tenant, own.pop())
    for tenant, amounts in held.items():
        for amount in amounts:
            shares.give_back(tenant, amount)
    assert shares._held == {}
