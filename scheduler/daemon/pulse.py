"""Tells of a scheduler that stands still, as behind a policy that comes to no end.

Nothing can be decided, answered or stopped then, not even `status`: all of it is on one event loop.
So this is for a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import structlog

from scheduler.core.errors import line_in
from scheduler.daemon.driver import Driver

LOOK_S = 5.0
"""So often the loop is asked for a sign of life, and so long, twice, it may take."""

log = structlog.get_logger()


def watch(loop: asyncio.AbstractEventLoop, thread_id: int, driver: Driver) -> None:
    """Looks again and again, without end.

    Args:
        loop: The scheduler's.
        thread_id: Of the thread that it runs in.
        driver: Knows the policy.
    """
    while True:
        look(loop, thread_id, driver)
        time.sleep(LOOK_S)


def look(loop: asyncio.AbstractEventLoop, thread_id: int, driver: Driver) -> None:
    """Waits for a sign of life, and logs where the loop stands if there is none for long."""
    asked_s = time.monotonic()
    alive = threading.Event()
    loop.call_soon_threadsafe(alive.set)
    if alive.wait(LOOK_S) or alive.wait(LOOK_S):  # twice: a process that was stopped looks so once
        return
    frame = sys._current_frames()[thread_id]
    at = line_in(type(driver.core.policy).__module__, frame)
    told = {"policy": driver.policy[0], "at": at or f"{frame.f_code.co_filename}:{frame.f_lineno}"}
    if at:
        told["mend"] = f"name another policy in the configuration, then: kill -9 {os.getpid()}"
    log.error("the scheduler stands still", **told)
    alive.wait()
    log.warning("the scheduler goes on", stood_s=round(time.monotonic() - asked_s, 3))
