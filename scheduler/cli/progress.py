"""How far long work is: a bar on a terminal; a line now and then where a log takes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from scheduler.cli.streams import say
from scheduler.cli.tables import duration

EVERY_S = 15.0
"""How long a log is left without a line."""


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows on stderr how far work is; what it gives is called after each of its parts.

    Args:
        doing: What is being done, as "playing".
        total: How many parts there are.
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
        """Says so, if it is long ago that something was said, and something is left."""
        self._done += 1
        left, now_s = self._total - self._done, time.monotonic()
        if left and now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            left_s = (now_s - self._began_s) / self._done * left
            say(f"{self._doing}: {self._done} of {self._total}, some {duration(left_s)} to go")
