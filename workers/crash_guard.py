"""Remember what crashed the process, so that one model cannot crash its worker for ever.

A library that crashes takes the process with it, and nothing is left to report the crash. So each
attempt is recorded on disk before it starts, and the record is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

ATTEMPTS = "attempts"
"""The folder of these records, within the box's state folder."""

MAX_DEATHS = 3
"""Fewer deaths in the same attempt may be chance, such as a box that was switched off."""

_SERVING = "-serving"
"""The end of the name of the record of deaths that came while requests were served."""

FORGET_AFTER_S = 3600.0
"""Seconds after the latest death until the attempt is made again."""


class CrashGuard:
    """Counts in a folder the attempts that the process did not survive."""

    def __init__(self, directory: Path, wall_clock_s: Callable[[], float] = time.time) -> None:
        """Use a folder, which is created if absent, and the clock that stamps files."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._wall_clock_s = wall_clock_s

    def verdict(self, key: str) -> str | None:
        """Why an attempt must not be made now, or None."""
        for name, what in (key, "trying"), (f"{key}{_SERVING}", "serving"):
            deaths = self._deaths(name)
            if deaths >= MAX_DEATHS:
                return (
                    f"the worker died {deaths} times while {what} it; it is tried again at the "
                    "first start an hour or more after the last death, or once "
                    f"{self._directory / name} is deleted"
                )
        return None

    @contextlib.contextmanager
    def watch(self, key: str) -> Iterator[None]:
        """Count a death if the process ends within the block, and none if an exception leaves it.

        Args:
            key: Names the attempt; valid as a file name.
        """
        self._record(key)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (self._directory / key).unlink(missing_ok=True)

    def count(self, key: str) -> None:
        """Count a death that comes now, unless `watch` counts it.

        Attempts that succeed do not clear it: what serves requests was prepared successfully.
        """
        if not (self._directory / key).exists():
            self._record(f"{key}{_SERVING}")

    def _record(self, name: str) -> None:
        # A full or read-only disk must not stop serving.
        with contextlib.suppress(OSError):
            text = f"{self._deaths(name) + 1} {os.getpid()}"
            (self._directory / name).write_text(text, encoding="ascii")

    def _deaths(self, key: str) -> int:
        path = self._directory / key
        try:
            # In both directions: a death stamped by a clock that ran ahead must not bar it for
            # longer.
            if abs(self._wall_clock_s() - path.stat().st_mtime) > FORGET_AFTER_S:
                return 0
            return int(path.read_text(encoding="ascii").partition(" ")[0])
        except (OSError, ValueError):
            # The record is absent, unreadable, or was cut short by the death that it was to count.
            return 0


def forgive(directory: Path, pids: Container[int]) -> None:
    """Uncounts the deaths of processes that were ended on purpose.

    Args:
        directory: The folder of the records.
        pids: The processes that were ended.
    """
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            with contextlib.suppress(OSError, ValueError):
                deaths, pid = map(int, path.read_text(encoding="ascii").split())
                if pid in pids and deaths > 1:
                    path.write_text(f"{deaths - 1} 0", encoding="ascii")
                elif pid in pids:
                    path.unlink()
