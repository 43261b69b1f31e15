"""What the commands that start something share: signals that end it, and bars of progress."""

from __future__ import annotations

import signal
import threading
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


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
