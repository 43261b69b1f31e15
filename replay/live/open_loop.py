"""What open-loop generators share: sending on schedule, whatever comes back, and the outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

from scheduler import CancelledError

T = TypeVar("T")

SETTLE_S = 5.0
"""How long after the last deadline an outcome may arrive before it counts as missing."""


async def in_time(
    items: Iterable[T] | AsyncIterable[T], at_s: Callable[[T], float], now_s: Callable[[], float]
) -> AsyncIterator[T]:
    """Yields each item when it is due; an overdue one at once, and none is skipped.

    Args:
        items: The items, in order of time.
        at_s: When an item is due.
        now_s: The clock, in seconds.
    """
    async for item in _each(items):
        # Sleep even if the item is overdue, so that answers are read.
        await asyncio.sleep(max(0.0, at_s(item) - now_s()))
        yield item


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def settle(out: set[asyncio.Future[Any]], timeout_s: float) -> None:
    """Waits for pending futures; cancels those left after the timeout, or if it is cancelled."""
    try:
        if out and timeout_s > 0:
            await asyncio.wait(out, timeout=timeout_s)
    finally:
        for future in list(out):
            future.cancel()


def outcome_of(ended: asyncio.Future[Any]) -> tuple[str | None, str]:
    """How a submitted request ended and why; the outcome is None if it was given up."""
    if ended.cancelled():
        return None, "given up"
    error = ended.exception()
    if error is None:
        return str(ended.result().outcome.value), ""
    return outcome_of_error(error), str(error)


def outcome_of_error(error: BaseException) -> str:
    """The outcome that an error of the client stands for, or its code."""
    if isinstance(error, CancelledError):
        return "cancelled"
    return str(getattr(error, "code", "failed"))
