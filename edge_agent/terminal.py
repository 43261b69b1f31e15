"""Output and signal handling shared by the commands that start something."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scheduler.lasting_output import lasting_stderr

_SAME_S = 0.3
"""Signals within this time of the first, in seconds, count as the same signal."""

SAY_EVERY_S = 5.0
"""The shortest time between progress lines for a device in a log, in seconds."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end a command: a service manager's, Ctrl-C's and that of a closed terminal."""

_PATIENCE_S = 2.0
"""How long to wait for whoever reads the output; a slow serial line takes its time."""

_LOOK_S = 0.5
"""How often the main thread wakes to see a signal that another thread received, in seconds."""


def whole_lines() -> Console:
    """A console on stderr, for a process in which another thread prints there, as Ray's does.

    `print` writes a text and its line end separately. So stderr is made line-buffered, and the
    console gets its own buffer, so that lines are never interleaved.
    """
    file = lasting_stderr(_PATIENCE_S, line_buffering=False)
    console = Console(file=file, highlight=False, soft_wrap=True)
    sys.stderr = lasting_stderr(_PATIENCE_S, line_buffering=True)
    return console


def exit_on_signals() -> threading.Event:
    """Raise `SystemExit` in the main thread at the first signal; blocked signals count from now on.

    So what was started is cleaned up, which a second signal can't prevent.

    Returns:
        An event that is set at that signal too: Python drops what is raised while it happens to
        destroy an object.
    """
    came = threading.Event()

    def handle(_number: int, _frame: Any) -> None:
        came.set()
        ignore_signals()
        sys.exit()

    _handle_signals(handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return came


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals back during the block, and undo a handler that it installs for SIGTERM.

    For code that loses what a handler raises in it, as imports and Ray's start do. Call this in the
    main thread.
    """
    handler = signal.getsignal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def on_signals(stop: threading.Event, at_once: threading.Event) -> None:
    """Set `stop` at the first SIGTERM, Ctrl-C or closed terminal, and `at_once` at the next.

    `timeout` and shells may send a signal twice that is meant once. So a signal counts as the next
    one only some time after the first, and a closed terminal never does.
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

    _handle_signals(handle)


def _handle_signals(handle: Callable[[int, Any], None]) -> None:
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # by `nohup`
            signal.signal(number, handle)


def wait_for_signal(event: threading.Event) -> None:
    """Wait, in the main thread, for an event that a signal handler sets.

    The kernel may deliver a signal to any thread, for example after the process had been stopped,
    and that does not wake this one.
    """
    while not event.wait(_LOOK_S):
        pass


def ignore_signals() -> None:
    """Keep signals from changing the exit status of a process that has finished.

    Python removes its handlers before the process ends.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class DeviceBars:
    """A progress bar per device; occasional lines instead where there is no terminal.

    Args:
        console: The console for the bars.
    """

    def __init__(self, console: Console) -> None:
        """Prepare the bars; they are not shown yet."""
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
        """Show the bars."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop updating the bars, and leave them as they are."""
        self._progress.stop()

    def show(self, targets: list[dict[str, Any]]) -> None:
        """Update the bars from the targets of a scheduler's status."""
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
        """Print a device's progress, if it has changed and the last line was not just now."""
        now_s = time.monotonic()
        said, said_s = self._said.setdefault(target_id, (done, now_s))
        if done != said and now_s - said_s >= SAY_EVERY_S:
            self._said[target_id] = done, now_s
            of = f" of {total}" if total else ""
            self._console.print(f"{target_id}: {done}{of} steps done; {text}", markup=False)
