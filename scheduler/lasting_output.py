"""Output that never holds up the process that writes it."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, TextIO


class LastingOutput(io.FileIO):
    """Drops what can't be written: a box keeps serving when its output has no reader.

    A reader that has stopped, such as a terminal after Ctrl-S or a stuck collector of logs, counts
    as none until it reads again; then it is told how much it has missed.

    Args:
        number: The descriptor, which stays open.
        patience_s: How long to wait for a reader that has just stopped, in seconds.
    """

    def __init__(self, number: int, patience_s: float) -> None:
        """Nothing has been dropped."""
        super().__init__(number, "w", closefd=False)
        self._patience_s = patience_s
        self._dropped = 0
        self._room = select.poll()
        self._room.register(number, select.POLLOUT)

    def write(self, data: Any) -> int:
        """Write all of it, or drop the rest; returns the size of all."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            if self._dropped and self._has_room():
                told = f"\n({self._dropped} bytes of output are missing here: nobody read them)\n"
                self._dropped = 0
                super().write(told.encode())
            while left and self._has_room():
                # So much fits where a pipe has room, so that the write does not wait.
                left = left[super().write(left[: select.PIPE_BUF]) or 0 :]
            self._dropped += len(left)
        except OSError:  # the other end of a pipe or terminal was closed, or the disk is full
            pass
        return size

    def _has_room(self) -> bool:
        return bool(self._room.poll(0 if self._dropped else self._patience_s * 1000))


def lasting_stderr(patience_s: float, *, line_buffering: bool) -> TextIO:
    """A text file on stderr, as `LastingOutput`; it drops everything if the process has none."""
    own = sys.stderr  # None for a process started without one
    raw = io.FileIO(os.devnull, "w") if own is None else LastingOutput(own.fileno(), patience_s)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        "utf-8" if own is None else own.encoding,
        errors="backslashreplace",
        line_buffering=line_buffering,
    )
