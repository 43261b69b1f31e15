"""Progress of long work: a bar on a terminal, or a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from scheduler.cli.streams import say
from scheduler.cli.tables import duration

EVERY_S = 15.0
"""Least time between two lines in a log."""


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows progress on stderr; the yielded function must be called after each part.

    Args:
        doing: What is being done, such as "playing".
        total: Number of parts.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(doing, total).advance
        return
    columns = doing, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=total)
        yield lambda: bars.advance(task)


class _Lines:
    def __init__(self, doing: str, total: int) -> None:
        self._doing = doing
        self._total = total
        self._done = 0
        self._began_s = self._told_s = time.monotonic()

    def advance(self) -> None:
        """Counts a part; prints a line if the last one is old enough and work is left."""
        self._done += 1
        left, now_s = self._total - self._done, time.monotonic()
        if left and now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            left_s = (now_s - self._began_s) / self._done * left
            say(f"{self._doing}: {self._done} of {self._total}, some {duration(left_s)} to go")
