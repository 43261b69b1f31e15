"""Ends a simulation whose policy never finishes.

A timer signal watches the simulation, which costs the simulation nothing. Python handles signals
only in the main thread, between two bytecode instructions. A policy that hangs in native code and
never returns to Python therefore hangs the simulation as well.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from replay.simulator import Simulator

LIMIT_S = 30.0
"""How long may pass without a request arriving or ending, which normally takes microseconds."""

LOOK_S = 1.0
"""The interval between checks. `NoEnd` is raised again at each check, in case it was swallowed
where an exception can't propagate, as in `__del__`.

Checks are counted rather than time, since a process that was stopped was not deciding."""

_READERS = "replay.sources", "replay.readers"
"""Time spent in these modules is not counted: reading requests takes as long as the file needs."""

_played: Simulator | None = None


class NoEnd(KeyboardInterrupt):
    """Time is up: an interruption, like Ctrl-C, so that no failure of a policy is taken for it."""


@contextmanager
def played(simulator: Simulator) -> Iterator[None]:
    """Registers the simulation that `watch` looks at."""
    global _played
    before, _played = _played, simulator
    try:
        yield
    finally:
        _played = before


def watch() -> None:
    """Raises `NoEnd` in the main thread once the simulation under `played` makes no headway."""
    looks, before = 0, None

    def look(_number: int, frame: FrameType | None) -> None:
        nonlocal looks, before
        if _played is None or _reads(frame):
            looks, before = 0, None
            return
        now = _played, _played.headway
        looks, before = (looks + 1 if now == before else 0), now
        if looks * LOOK_S >= LIMIT_S:
            at_s = _played.scheduler.now_ns / 1e9
            raise NoEnd(
                f"has been deciding for {looks * LOOK_S:g} s, {at_s:.3f} s into the replay, "
                "and no request came or ended meanwhile"
            )

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)


@contextmanager
def watched() -> Iterator[None]:
    """As `watch`, for the code inside, unless the process uses the alarm for something else."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    handler = signal.getsignal(signal.SIGALRM)
    watch()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _reads(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_READERS):
            return True
        frame = frame.f_back
    return False
