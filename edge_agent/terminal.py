"""What the commands that start something share: what they say, and signals that end them."""

from __future__ import annotations

import io
import signal
import sys
import threading
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


def whole_lines() -> Console:
    """A console on stderr, for a process in which another thread prints there, as Ray's does.

    `print` hands a text and its line end on one by one. Stderr is made to wait for the end, and the
    console has a buffer of its own, so that no line ends up within another.
    """
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)
    own = open(  # noqa: SIM115 (as long as stderr is)
        sys.stderr.fileno(), "w", encoding=sys.stderr.encoding, errors="backslashreplace",
        closefd=False,
    )  # fmt: skip
    return Console(file=own, highlight=False, soft_wrap=True)


def on_signals(stop: threading.Event, at_once: threading.Event) -> None:
    """Sets `stop` at the first SIGTERM or Ctrl-C, and `at_once` at the next."""

    def handle(_number: int, _frame: Any) -> None:
        (at_once if stop.is_set() else stop).set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


class DeviceBars:
    """A bar for each device that gets ready; nothing where nobody looks at a terminal.

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
        self._bars: dict[str, TaskID] = {}

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
            if target["id"] not in self._bars:
                self._bars[target["id"]] = self._progress.add_task(target["id"], text="")
            self._progress.update(
                self._bars[target["id"]],
                completed=step["done"],
                total=step["total"] or None,
                text=step["text"],
            )
