"""Starts and ends tasks that run until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import structlog

log = structlog.get_logger()

_AGAIN_S = 0.1
"""How long a task may take to end before it is cancelled again."""


def start_task(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Starts a task, and logs `what` it was for should an error end it.

    Whoever keeps a task to cancel it keeps asyncio from telling of its error.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the box has failed", task=what, exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


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
