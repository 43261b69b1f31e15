"""Free memory that runtimes keep after their largest batches, while a device idles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from workers.batches import Item
from workers.memory import resident_bytes
from workers.residency import Key, Residency

SPARE_BYTES = 256_000_000
"""Less spare memory than this is kept, because allocating it again costs more than it is worth."""

IDLE_S = 60.0
"""A device that has served nothing for this long, in seconds, frees its spare memory."""


class SpareMemory:
    """Watches how much memory the process uses beyond the least it has needed.

    Args:
        residency: The variants in memory, and their runners.
        samples: Makes inputs for a variant: the given number of items.
        lock: Held while something runs.
        running: Given a variant and a number of items, makes the context in which they run.
        idle_s: Returns how long the device has served nothing, in seconds.
        resident: Returns the memory that the process uses, in bytes.
    """

    def __init__(
        self,
        residency: Residency,
        samples: Callable[[Key, int], list[Item]],
        lock: threading.RLock,
        running: Callable[[Key, int], AbstractContextManager[None]],
        idle_s: Callable[[], float],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """Start without a known minimum."""
        self._residency = residency
        self._samples = samples
        self._lock = lock
        self._running = running
        self._idle_s = idle_s
        self._resident = resident
        self._needed: int | None = None

    def look(self) -> None:
        """Have sessions free their spare memory, if it is large and the device idles."""
        taken = self._resident()
        self._needed = min(taken, self._needed or taken)
        if taken - self._needed < SPARE_BYTES or self._idle_s() < IDLE_S:
            return
        for key in self._residency.keys:
            if not self._lock.acquire(blocking=False):
                return  # the device is busy again
            try:
                if self._residency.is_loaded(key):
                    with self._running(key, 1):
                        self._residency.runner(key).give_back(self._samples(key, 1))
            finally:
                self._lock.release()
        self._needed = self._resident()
