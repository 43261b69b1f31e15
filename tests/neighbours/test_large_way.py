"""The second connection to another box."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from scheduler import wire
from scheduler.address import Address
from scheduler.client.connection import Connection, OnFrame, OnLost, connect
from scheduler.daemon.neighbours.large_way import LARGE_BYTES, LargeWay
from scheduler.daemon.ways.meter import WayMeter
from tests.fake_box import FakeBox


def test_a_connection_that_is_not_wanted_as_it_begins_to_open_may_be_opened_later():
    """The box was lost when it had just been asked for."""
    dialled: list[int] = []

    async def dial(_on_frame: OnFrame, _on_lost: OnLost) -> Connection:
        dialled.append(1)
        raise ConnectionRefusedError

    async def test() -> None:
        way = LargeWay(WayMeter(), dial, lambda *_: None, lambda *_: None)
        for count in (0, 1):
            opening = way.opening_for("m", LARGE_BYTES + 1)
            assert opening is not None
            if not count:
                way.close()
            await asyncio.wait([opening])
            assert len(dialled) == count

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_connection_that_is_lost_as_it_opens_carries_nothing(tmp_path: Path):
    box = FakeBox(tmp_path / "box.sock").start()

    async def dial(on_frame: OnFrame, on_lost: OnLost) -> Connection:
        def hear(connection: Connection, header: wire.Header, body: Any) -> None:
            on_frame(connection, header, body)
            connection.fail(ConnectionResetError("the other box has just ended"))

        connection = await connect(Address("unix", path=str(box.path)), None, hear, on_lost)
        connection.send(wire.encode({"t": "status", "id": 0}))
        return connection

    async def test() -> None:
        way = LargeWay(WayMeter(), dial, lambda *_: None, lambda *_: None)
        opening = way.opening_for("m", LARGE_BYTES + 1)
        assert opening is not None
        await opening
        assert way.connection_for("m", LARGE_BYTES + 1) is None

    try:
        asyncio.run(asyncio.wait_for(test(), 10))
    finally:
        box.close()
