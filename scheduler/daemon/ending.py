"""Ends tasks that run until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

_AGAIN_S = 0.1
"""How long a task may take to end before it is cancelled again."""


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks, repeatedly if necessary, until all have ended.

    Before Python 3.12 `asyncio.wait_for` swallows a cancellation that arrives at the moment its
    awaitable completes, and libraries use it too.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
