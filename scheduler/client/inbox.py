"""The way into an event loop's objects from other threads."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Passes items on, in order, on the thread of an event loop.

    Args:
        loop: The event loop.
        take: Called there with each item.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        """Starts empty."""
        self._loop = loop
        self._take = take
        self._process = os.getpid()
        self._items: deque[T] = deque()
        self._woken = False

    def put(self, item: T) -> None:
        """Adds an item, from any thread.

        Raises:
            RuntimeError: The loop is closed, or was made before this process was forked.
        """
        self.check_process()
        self._items.append(item)
        if self._woken:
            return
        # Two threads may both see False: that is one wake-up too many, never one too few.
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            self.drain()  # Items that other threads have added since must not remain.
            raise

    def check_process(self) -> None:
        """Checks that this process made the inbox; in a forked one no answers arrive.

        Raises:
            RuntimeError: This process was forked from the one that did.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "this client was made before the process was forked, and its connection is the "
                "parent's: make one in each process"
            )

    def drain(self) -> None:
        """Passes on all items."""
        self._woken = False
        items = self._items
        while items:
            self._take(items.popleft())
