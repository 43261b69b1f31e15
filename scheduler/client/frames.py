"""Results of many frames: the core of both clients' `map`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from scheduler.errors import InvalidInput

_NONE_YET = object()
"""Yielded instead of a frame when the oldest result in flight arrives before it."""

_TURN_S = 0.001
"""How long frames that need no waiting are sent before the event loop gets a turn."""


def check_map(frames: Any, concurrency: Any, options: Mapping[str, Any]) -> None:
    """Checks the arguments of `map`.

    Raises:
        InvalidInput: The frames are a single dict, the concurrency is not an integer from 1, or one
            id is given for the tasks of all frames.
    """
    if isinstance(frames, Mapping):
        raise InvalidInput(
            "frames are many, such as [{'image': x}, {'image': y}]; a single dict is for submit"
        )
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput(f"concurrency is an integer from 1, not {concurrency!r}")
    if options.get("id") is not None:
        raise InvalidInput("id is that of one task; submit each frame with an id of its own")


def results(
    frames: Iterable[Any],
    send: Callable[[Any], Any],
    concurrency: int,
    return_exceptions: bool,
) -> Iterator[Any]:
    """Sends frames and yields their results, in order."""
    window: deque[Any] = deque()

    def first() -> Any:
        try:
            outcome = window[0].result()
        except Exception as error:
            window.popleft()
            if not return_exceptions:
                raise
            return _returned(error)
        window.popleft()  # not earlier, so that an interrupted wait cancels this one too
        return outcome

    try:
        for frame in frames:
            window.append(send(frame))
            while _is_due(window, concurrency):
                yield first()
        while window:
            yield first()
    finally:
        for future in window:
            if isinstance(future, Future):  # a durable task goes on
                future.cancel()


async def async_results(
    frames: Iterable[Any] | AsyncIterable[Any],
    send: Callable[[Any], Awaitable[asyncio.Future[Any]]],
    concurrency: int,
    return_exceptions: bool,
) -> AsyncIterator[Any]:
    """Like `results`, for asyncio, where it waits for frames and results at once."""
    window: deque[asyncio.Future[Any]] = deque()

    async def first() -> Any:
        try:
            return await window.popleft()
        except Exception as error:
            if not return_exceptions:
                raise
            return _returned(error)

    try:
        async with aclosing(_as_they_come(frames, window)) as coming:
            async for frame in coming:
                if frame is _NONE_YET:
                    yield await first()
                else:
                    window.append(await send(frame))
                while _is_due(window, concurrency):
                    yield await first()
        while window:
            yield await first()
    finally:
        for future in window:
            future.cancel()


def _returned(error: Exception) -> Exception:
    """Without the frames it passed, which lead to the caller's and so to what holds it: a cycle."""
    return error.with_traceback(None)


def _is_due(window: Sequence[Any], concurrency: int) -> bool:
    """Whether to yield the oldest result in flight before asking for another frame.

    A result that has arrived is not held back until the window is full, since a camera fills it
    slowly. The last one in flight is held back, so that devices have work while the caller handles
    a result. A durable task can't tell whether it has ended.
    """
    if len(window) >= concurrency:
        return True
    return len(window) > 1 and hasattr(window[0], "done") and bool(window[0].done())


async def _as_they_come(
    frames: Iterable[Any] | AsyncIterable[Any], window: Sequence[asyncio.Future[Any]]
) -> AsyncGenerator[Any, None]:
    """Yields frames, and `_NONE_YET` for each result that arrives before the next frame."""
    if not isinstance(frames, AsyncIterable):
        time_s = asyncio.get_running_loop().time
        turn_s = time_s()
        for frame in frames:
            yield frame
            if time_s() - turn_s > _TURN_S:  # e.g. if a camera blocks: answers need the loop too
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # the first iteration resumed this before reading
                turn_s = time_s()
        return
    source = aiter(frames)
    while True:
        coming = asyncio.ensure_future(_next(source))
        try:
            while window and not coming.done():
                await asyncio.wait((coming, window[0]), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    yield _NONE_YET
            frame = await coming
        finally:
            coming.cancel()
        if frame is _NONE_YET:
            return
        yield frame


async def _next(source: AsyncIterator[Any]) -> Any:
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return _NONE_YET
