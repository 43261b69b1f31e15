"""The clock of durable tasks: it continues where it was after a restart, and nobody can set it.

A deadline of days has to outlive the process and the boot, which only the wall clock does, but that
clock can be set, by hand or by NTP. So the times on disk are those of a task clock. While the box
runs, it advances with CLOCK_BOOTTIME, which nobody can set and which keeps counting while the box
sleeps. At a start it is the wall clock less a shift, which is on disk too. When the wall clock
turns out to have been set, only the shift changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MS = 1_000_000

STEP_MS = 1_000
"""A difference between the clocks from this size on is a step, not drift."""


def boot_ns() -> int:
    """Time since boot, including time asleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class TaskClock:
    """Converts between times on disk (`_ms`) and times in memory (`_ns`, of `boot_ns`).

    Args:
        wall_ns: The wall clock.
        boot_ns: The monotonic clock.

    Attributes:
        shift_ms: The wall clock less the task clock, as it is on disk.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """Starts as the clock of a new store."""
        self._wall_ns = wall_ns
        self.boot_ns = boot_ns
        self.start(0, 0)

    def start(self, shift_ms: int, seen_ms: int) -> None:
        """Continues the clock of a store.

        Args:
            shift_ms: The shift on disk.
            seen_ms: The latest time on disk. A wall clock behind it was set back while the process
                was down, as on a box without a clock battery. The task clock then starts from that
                time.
        """
        self.shift_ms = shift_ms
        now_ms = max(self._wall_ns() // _MS - shift_ms, seen_ms)
        self._offset_ms = now_ms - self.boot_ns() // _MS

    def now_ms(self) -> int:
        """The current time, as written to disk."""
        return self.to_ms(self.boot_ns())

    def to_ms(self, boot_ns: int) -> int:
        """Converts a time in memory to the form on disk."""
        return boot_ns // _MS + self._offset_ms

    def to_unix_ms(self, ms: int) -> int:
        """Converts a time on disk to the wall clock's."""
        return ms + self.shift_ms

    def step_ms(self) -> int:
        """How far the wall clock was set since the shift was written; 0 if it only drifted."""
        step_ms = self._wall_ns() // _MS - self.now_ms() - self.shift_ms
        return step_ms if abs(step_ms) >= STEP_MS else 0
