"""The two clocks of a durable task: the wall's on disk, one that only runs forward in memory.

A deadline of days has to outlive the process and the boot, so on disk it is a time of the wall
clock. That clock can be set, by hand or by NTP. So while the box runs, deadlines are counted on
CLOCK_BOOTTIME, which no one sets and which counts while the box sleeps; and when the wall clock is
seen to have been set, what is on disk is moved along with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MS = 1_000_000

STEP_MS = 1_000
"""A difference between the clocks that is more than drift."""


def boot_ns() -> int:
    """Time since the box was started, asleep or awake."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class TaskClock:
    """Tells the time of tasks.

    Args:
        wall_ns: The wall clock.
        boot_ns: The clock that only runs forward.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """Takes the wall clock to be right."""
        self._wall_ns = wall_ns
        self.boot_ns = boot_ns
        self._offset_ms = wall_ns() // _MS - boot_ns() // _MS

    def not_before(self, seen_ms: int) -> None:
        """Takes note of the latest time that the store has seen.

        A wall clock that says less was set back while nobody looked, as on a box without a battery
        for it: then that time counts, until `step_ms` finds the clock set right.
        """
        self._offset_ms += max(0, seen_ms - self.wall_ms())

    def wall_ms(self) -> int:
        """The time to be written to disk."""
        return self.boot_ns() // _MS + self._offset_ms

    def to_wall_ms(self, boot_ns: int) -> int:
        """A time in memory as it is written to disk."""
        return boot_ns // _MS + self._offset_ms

    def to_boot_ns(self, wall_ms: int) -> int:
        """A time on disk as it is counted in memory."""
        return (wall_ms - self._offset_ms) * _MS

    def step_ms(self) -> int:
        """By how much the wall clock was set since the last look; 0 where it only drifted.

        What is on disk must be moved by as much; from now on `wall_ms` follows the clock.
        """
        step_ms = self._wall_ns() // _MS - self.wall_ms()
        if abs(step_ms) < STEP_MS:
            return 0
        self._offset_ms += step_ms
        return step_ms

    def take_back(self, step_ms: int) -> None:
        """Counts as before a step along which what is on disk was not moved; it is found again."""
        self._offset_ms -= step_ms
