"""Starts and ends tasks of asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

log = structlog.get_logger()

_LOOK_S = 0.01
"""How often `wait_until` looks."""

_AGAIN_S = 0.1
"""How long a task may take to end before it is cancelled again."""


def start_task(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Starts a task that runs until it is cancelled; logs `what` it was for if an error ends it.

    Whoever keeps a task to cancel it keeps asyncio from telling of its error.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the box has failed", task=what, exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


def keep_task(
    work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    """Starts a task that is in a set until it has ended: asyncio's own reference is a weak one."""
    task = asyncio.get_running_loop().create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)
    return task


def heed(task: asyncio.Task[Any]) -> None:
    """Takes the error of a task that nobody awaits any more; asyncio would log one left untaken."""
    if not task.cancelled():
        task.exception()


async def wait_until(over: Callable[[], bool], seconds: float) -> None:
    """Waits at the end of a process until something is over, but at most so many seconds."""
    end_s = time.monotonic() + seconds
    while not over() and time.monotonic() < end_s:
        await asyncio.sleep(_LOOK_S)


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
