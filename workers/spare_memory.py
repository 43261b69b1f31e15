"""Memory that runtimes keep of their largest batches, given back while a device idles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from workers.memory import resident_bytes
from workers.model import Model
from workers.residency import Residency
from workers.sampling import sample_items

SPARE_BYTES = 256_000_000
"""Less than this is kept: to have it again takes the next batch longer than it is worth."""

IDLE_S = 60.0
"""For how long a device has served nothing before anything is given back."""


class SpareMemory:
    """Watches what the process takes beyond what it needed at the least.

    Args:
        residency: What is in memory, and runs.
        models: The models, by name.
        lock: Held by whoever runs something.
        idle_s: For how long the device has served nothing, in seconds.
        resident: The memory that the process takes, in bytes.
    """

    def __init__(
        self,
        residency: Residency,
        models: Mapping[str, Model],
        lock: threading.RLock,
        idle_s: Callable[[], float],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """Nothing is known yet."""
        self._residency = residency
        self._models = models
        self._lock = lock
        self._idle_s = idle_s
        self._resident = resident
        self._needed: int | None = None

    def look(self) -> None:
        """Has sessions give back what they keep, where it is much and the device idles."""
        taken = self._resident()
        self._needed = min(taken, self._needed or taken)
        if taken - self._needed < SPARE_BYTES or self._idle_s() < IDLE_S:
            return
        for key in self._residency.keys:
            if not self._lock.acquire(blocking=False):
                return  # it has something to do again
            try:
                if self._residency.is_loaded(key):
                    items = sample_items(self._models[key[0]], 1)
                    self._residency.runner(key).give_back(items)
            finally:
                self._lock.release()
        self._needed = self._resident()
