"""An event loop on a virtual clock: it jumps to the next timer when nothing can run.

Sockets are real, and loopback delivers at once, so boxes that talk to each other in one process
run as fast as the processor allows and see the same times on a slow machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOKS = 3
"""So often in a row nothing may be ready before the clock moves on."""


class _Selector(selectors.DefaultSelector):
    """Never waits: where others would, time passes."""

    passed_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        for _ in range(_LOOKS):
            ready = super().select(0)
            if ready:
                return ready
        if timeout is None:
            return super().select(None)
        self.passed_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Whose `time` is virtual, in seconds."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.passed_s

    def time_ns(self) -> int:
        return int(self._virtual.passed_s * 1e9)


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Runs something to its end on a loop of its own, on which hours pass in seconds."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
