"""Progress of long work: a bar on a terminal, or a line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from scheduler.cli.streams import say
from scheduler.cli.tables import duration

EVERY_S = 15.0
"""Least time between two lines in a log."""


class Now:
    """How the current part of the work stands; set by one thread, read by another."""

    def __init__(self) -> None:
        """Says nothing at first."""
        self._says: Callable[[], str] = str

    def set(self, says: Callable[[], str]) -> None:
        """Takes the function that says it in a few words."""
        self._says = says

    def __call__(self) -> str:
        """The words."""
        return self._says()


@contextmanager
def progress(doing: str, total: int, now: Callable[[], str] = str) -> Iterator[Callable[[], None]]:
    """Shows progress on stderr; the yielded function must be called after each part.

    Args:
        doing: What is being done, such as "playing".
        total: Number of parts.
        now: Says in a few words how the current part stands; it is called by another thread.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TimeRemainingColumn,
    )

    class Words(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(now(), overflow="ellipsis", no_wrap=True)

    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Lines(doing, total, now)
        with lines.kept_up():
            yield lines.advance
        return
    columns = doing, BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), Words()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=total)
        yield lambda: bars.advance(task)


class _Lines:
    def __init__(self, doing: str, total: int, now: Callable[[], str]) -> None:
        self._doing = doing
        self._total = total
        self._now = now
        self._done = 0
        self._began_s = self._told_s = time.monotonic()
        self._ended = threading.Event()

    def advance(self) -> None:
        """Counts a part; prints a line if the last one is old enough and work is left."""
        self._done += 1
        left = self._total - self._done
        if left and self._is_due():
            left_s = (self._told_s - self._began_s) / self._done * left
            self._tell(f"some {duration(left_s)} to go")

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """Prints lines also while a long part is being done."""
        thread = threading.Thread(target=self._keep_up, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _keep_up(self) -> None:
        while not self._ended.wait(EVERY_S):
            if self._is_due():
                self._tell(self._now())

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        due = now_s - self._told_s >= EVERY_S
        if due:
            self._told_s = now_s
        return due

    def _tell(self, more: str) -> None:
        say(", ".join(filter(None, (f"{self._doing}: {self._done} of {self._total}", more))))
