"""Watchdog: logs when the scheduler's event loop stalls, and ends a scheduler with a hung policy.

A stalled loop can decide, answer and stop nothing, not even `status`, so the watchdog runs in a
thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable

import structlog

from scheduler.core.errors import line_in, line_of
from scheduler.daemon.driver import Driver
from scheduler.policy_loading import FALLBACK

LOOK_S = 5.0
"""How often the loop is asked for a sign of life; it may take twice as long to give one."""

END_S = 20.0
"""How much longer a policy may take after the stall was logged."""

log = structlog.get_logger()


def watch(
    loop: asyncio.AbstractEventLoop,
    thread_id: int,
    driver: Driver,
    end: Callable[[str], None],
) -> None:
    """Checks the loop forever.

    Args:
        loop: The scheduler's event loop.
        thread_id: The thread that runs the loop.
        driver: Knows the policy.
        end: Ends the process if the policy hangs; its argument says which policy, and where.
    """
    while True:
        look(loop, thread_id, driver, end)
        rest()


def rest() -> None:
    """Sleeps until the next look; logs if no thread of the process ran for long meanwhile."""
    began_s = time.monotonic()
    time.sleep(LOOK_S)
    stood_s = time.monotonic() - began_s - LOOK_S
    if stood_s > LOOK_S:
        log.warning(
            "the scheduler's process was stopped, or got no processor", stood_s=round(stood_s, 3)
        )


def look(
    loop: asyncio.AbstractEventLoop,
    thread_id: int,
    driver: Driver,
    end: Callable[[str], None],
) -> None:
    """Waits for a sign of life from the loop; logs where the loop is if none comes in time."""
    asked_s = time.monotonic()
    alive = threading.Event()
    loop.call_soon_threadsafe(alive.set)
    if alive.wait(LOOK_S) or alive.wait(LOOK_S):  # a process that was stopped fails the first wait
        return
    frame = sys._current_frames()[thread_id]
    at = _in_policy(thread_id, driver)
    # Ending would not help if the default hangs: the next scheduler would run it too.
    is_ended = bool(at) and driver.policy != FALLBACK
    told = {
        "policy": driver.policy.name,
        "at": at or f"{frame.f_code.co_filename}:{frame.f_lineno}",
    }
    if is_ended:
        told["mend"] = (
            f"unless it ends in {END_S:g} s, the scheduler starts anew with {FALLBACK.name}"
        )
    elif at:
        told["mend"] = f"name another policy in the configuration, then: kill -9 {os.getpid()}"
    log.error("the scheduler stands still", **told)
    if is_ended and not alive.wait(END_S) and (at := _in_policy(thread_id, driver)):
        why = f"{driver.policy.name}: no end after {time.monotonic() - asked_s:.0f} s, at {at}"
        log.error("the scheduler ends, to start anew without its policy", why=why)
        end(why)
    alive.wait()
    log.warning("the scheduler goes on", stood_s=round(time.monotonic() - asked_s, 3))


def _in_policy(thread_id: int, driver: Driver) -> str:
    """The line at which the policy, or one it wraps, is now; empty if no policy is running."""
    frame = sys._current_frames()[thread_id]
    if at := line_of(driver.core.policy, frame):
        return at
    if not line_in("scheduler.core.scheduler", frame):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
