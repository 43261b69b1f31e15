"""The timer for the deadlines of everything in flight."""

from __future__ import annotations

import asyncio
import time

from scheduler.client.deadlines import Deadlines
from tests.waiting import PATIENCE_S

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


def test_what_is_added_as_another_is_due_is_due_in_its_turn() -> None:
    """Enough is added for the heap to be tidied, and what ends last is due long before the rest."""

    async def scene() -> list[int]:
        now_ns = time.monotonic_ns()
        live, due, over = set(range(1_000)), list[int](), asyncio.Event()

        def on_due(call_id: int) -> None:
            due.append(call_id)
            if call_id:
                over.set()
                return
            for added in range(2, 700):
                deadlines.add(now_ns + HOUR_NS, added)
                live.discard(added)
            deadlines.add(now_ns + 20 * MS, 999)

        deadlines = Deadlines(asyncio.get_running_loop(), live, on_due)
        deadlines.add(now_ns + HOUR_NS, 1)
        deadlines.add(now_ns + MS, 0)
        await asyncio.wait_for(over.wait(), PATIENCE_S)
        deadlines.close()
        return due

    assert asyncio.run(scene()) == [0, 999]
