"""Wakes an event loop to within microseconds; its own timers can't, since epoll counts in ms."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import heapq
import os
import time
from collections.abc import Callable
from itertools import count

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class PreciseTimer:
    """Calls functions at times of `time.monotonic_ns`, by one timerfd(2) on the running loop."""

    def __init__(self) -> None:
        """Begins with no calls.

        Raises:
            OSError: The system has no timerfd, or no descriptor is left.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        except AttributeError:
            raise OSError(errno.ENOSYS, "there is no timerfd(2) here, only on Linux") from None
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._set_ns = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._fired)

    def call_at(self, at_ns: int, call: Callable[[], None]) -> None:
        """Calls a function at a time, or once the loop is free after it; never after `close`."""
        if self._closed:
            return
        heapq.heappush(self._calls, (at_ns, next(self._numbers), call))
        self._set()

    def close(self) -> None:
        """Drops all calls, and accepts no more."""
        self._closed = True
        self._calls.clear()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._set_ns = 0
        now_ns = time.monotonic_ns()
        try:
            while self._calls and self._calls[0][0] <= now_ns:
                heapq.heappop(self._calls)[2]()
        finally:  # a call that fails must not hold up the others
            self._set()

    def _set(self) -> None:
        if not self._calls or self._calls[0][0] == self._set_ns:
            return
        self._set_ns = self._calls[0][0]
        # A time of 0 would disarm the timer.
        seconds, ns = divmod(max(1, self._set_ns), _NS)
        value = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, ns))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(value), None)
