"""What the commands that start something share: what they say, and signals that end them."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_SAME_S = 0.3
"""Signals so close to the first say the same."""

SAY_EVERY_S = 5.0
"""So often at most a log hears how far a device is."""

_LOOK_S = 0.5
"""So often the main thread wakes for a signal that another thread was given."""


class _Lasting(io.FileIO):
    """Drops what can't be written: a box serves on when the reader of its words is gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:  # the other end of a pipe or a terminal was closed; or the disk is full
            return len(data)


def _stderr(line_buffering: bool) -> TextIO:
    own = sys.stderr  # None for a process that was started without one
    raw = io.FileIO(os.devnull, "w") if own is None else _Lasting(own.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        "utf-8" if own is None else own.encoding,
        errors="backslashreplace",
        line_buffering=line_buffering,
    )


def whole_lines() -> Console:
    """A console on stderr, for a process in which another thread prints there, as Ray's does.

    `print` hands a text and its line end on one by one. Stderr is made to wait for the end, and the
    console has a buffer of its own, so that no line ends up within another.
    """
    console = Console(file=_stderr(line_buffering=False), highlight=False, soft_wrap=True)
    sys.stderr = _stderr(line_buffering=True)
    return console


def on_signals(stop: threading.Event, at_once: threading.Event) -> None:
    """Sets `stop` at the first SIGTERM, Ctrl-C or closed terminal, and `at_once` at the next.

    `timeout` and shells may tell a process twice what they mean once: a signal counts as the next
    only some time after the first, and a terminal can be closed only once.
    """
    first_s: float | None = None

    def handle(number: int, _frame: Any) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s
            stop.set()
        elif number != signal.SIGHUP and now_s - first_s > _SAME_S:
            at_once.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, handle)


def wait_for_signal(event: threading.Event) -> None:
    """Waits, in the main thread, for what a signal sets there.

    The kernel may give the signal to any thread, as where the process had been stopped, and that
    one does not wake this.
    """
    while not event.wait(_LOOK_S):
        pass


def ignore_signals() -> None:
    """Lets no signal change the exit status of a process that has ended all it had.

    Python gives up its handlers before it is gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class DeviceBars:
    """A bar for each device that gets ready; a line now and then where there is no terminal.

    Args:
        console: Where the bars are.
    """

    def __init__(self, console: Console) -> None:
        """Not shown yet."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> DeviceBars:
        """Shows them."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves them as they are."""
        self._progress.stop()

    def show(self, targets: list[dict[str, Any]]) -> None:
        """Takes over how far devices are, from the targets of a scheduler's status."""
        for target in targets:
            step = target["progress"]
            if self._progress.disable:
                self._say(target["id"], step["done"], step["total"], step["text"])
                continue
            if target["id"] not in self._bars:
                self._bars[target["id"]] = self._progress.add_task(target["id"], text="")
            self._progress.update(
                self._bars[target["id"]],
                completed=step["done"],
                total=step["total"] or None,
                text=step["text"],
            )

    def _say(self, target_id: str, done: int, total: int, text: str) -> None:
        """Says how far a device is, where that is news and was not said just now."""
        now_s = time.monotonic()
        said, said_s = self._said.setdefault(target_id, (done, now_s))
        if done != said and now_s - said_s >= SAY_EVERY_S:
            self._said[target_id] = done, now_s
            of = f" of {total}" if total else ""
            self._console.print(f"{target_id}: {done}{of} steps done; {text}", markup=False)
