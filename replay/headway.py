"""Ends a simulation whose policy comes to no end. It is looked at from outside, so it pays nothing.

Signals reach only the main thread, and there only between two steps of Python: a policy that hangs
in foreign code, which never comes back to Python, hangs the simulation with it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from replay.simulator import Simulator

LIMIT_S = 30.0
"""So long may pass without a request that comes or ends, which takes microseconds as a rule."""

LOOK_S = 1.0
"""So often it is looked at, and said again where an exception could not leave, as in a `__del__`.

The looks are counted and not the time, for a process that was stopped was not deciding."""

_READERS = "replay.sources", "replay.readers"
"""Whoever is in there reads requests, which takes what a file takes."""

_played: Simulator | None = None


class NoEnd(KeyboardInterrupt):
    """Time is up: an interruption, as Ctrl-C is, which no failure of a policy may be taken for."""


@contextmanager
def played(simulator: Simulator) -> Iterator[None]:
    """What `ended` looks at."""
    global _played
    before, _played = _played, simulator
    try:
        yield
    finally:
        _played = before


def watch() -> None:
    """Has what is `played` in the main thread end with a `NoEnd`, once it makes no headway."""
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
    """The same for what runs inside, unless the process has set the alarm for something else."""
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
