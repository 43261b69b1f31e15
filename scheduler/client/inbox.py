"""The one way into an event loop's objects from other threads."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Hands on what is put into it, in order, on the thread of an event loop.

    Args:
        loop: The event loop.
        take: Called there with each item.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        """Nothing is in it."""
        self._loop = loop
        self._take = take
        self._process = os.getpid()
        self._items: deque[T] = deque()
        self._woken = False

    def put(self, item: T) -> None:
        """Puts something in, from any thread.

        Raises:
            RuntimeError: The loop is closed, or that of the process that this one was forked from.
        """
        self.check_process()
        self._items.append(item)
        if self._woken:
            return
        # Two threads may both see False: a wake-up too many, never one too few.
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            self.drain()  # What another thread has put there meanwhile must not stay.
            raise

    def check_process(self) -> None:
        """Nothing in the process that made it; in a forked one nobody brings answers.

        Raises:
            RuntimeError: This is a forked one.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "this client was made before the process was forked, and its connection is the "
                "parent's: make one in each process"
            )

    def drain(self) -> None:
        """Hands on all that is there."""
        self._woken = False
        items = self._items
        while items:
            self._take(items.popleft())
