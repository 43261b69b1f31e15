"""The two clocks of a durable task: the wall clock on disk, a monotonic clock in memory.

A deadline of days has to outlive the process and the boot, so on disk it is a wall clock time. That
clock can be set, by hand or by NTP. While the box runs, deadlines therefore count on
CLOCK_BOOTTIME, which nobody can set and which keeps counting while the box sleeps. When the wall
clock turns out to have been set, the times on disk are shifted by the same amount.
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
    """Converts between the two clocks of tasks.

    Args:
        wall_ns: The wall clock.
        boot_ns: The monotonic clock.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """Assumes that the wall clock is right."""
        self._wall_ns = wall_ns
        self.boot_ns = boot_ns
        self._offset_ms = wall_ns() // _MS - boot_ns() // _MS

    def not_before(self, seen_ms: int) -> None:
        """Moves the task clock forward to the latest time in the store, if it is behind.

        A wall clock behind that time was set back while the process was down, as on a box without
        a clock battery. The task clock then starts from that time, until `step_ms` finds the wall
        clock corrected.
        """
        self._offset_ms += max(0, seen_ms - self.wall_ms())

    def wall_ms(self) -> int:
        """The current time, as written to disk."""
        return self.boot_ns() // _MS + self._offset_ms

    def to_wall_ms(self, boot_ns: int) -> int:
        """Converts a time in memory to the form on disk."""
        return boot_ns // _MS + self._offset_ms

    def to_boot_ns(self, wall_ms: int) -> int:
        """Converts a time on disk to the form in memory."""
        return (wall_ms - self._offset_ms) * _MS

    def step_ms(self) -> int:
        """How far the wall clock was set since the last call; 0 if it only drifted.

        The caller must shift the times on disk by as much. From now on `wall_ms` follows the clock.
        """
        step_ms = self._wall_ns() // _MS - self.wall_ms()
        if abs(step_ms) < STEP_MS:
            return 0
        self._offset_ms += step_ms
        return step_ms

    def take_back(self, step_ms: int) -> None:
        """Undoes a step that could not be applied to the disk; `step_ms` will find it again."""
        self._offset_ms -= step_ms
