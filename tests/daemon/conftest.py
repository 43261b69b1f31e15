"""What several files of this folder play with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from scheduler import AsyncClient
from scheduler.client import connection
from scheduler.client.lent_memory import LentMemory, borrowed
from scheduler.wire import Header
from tests.daemon.large_box import Box, a_box


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Runs a play with a box and a client of it."""
    lent: list[LentMemory] = []

    def borrow(header: Header) -> LentMemory | None:
        found = borrowed(header)
        lent.extend([found] if found is not None else ())
        return found

    monkeypatch.setattr(connection, "borrowed", borrow)

    def play(acts: Callable[[Box, AsyncClient], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with a_box(tmp_path, **options) as box:
                box.lent = lent
                async with AsyncClient(box.url) as client:
                    await acts(box, client)

        uvloop.run(main())

    return play
