"""Free memory that runtimes keep after their largest batches, while a device idles."""

from __future__ import annotations

from collections.abc import Callable

from workers.memory import resident_bytes
from workers.residency import Key
from workers.served_variants import ServedVariants
from workers.tensors import Item

SPARE_BYTES = 256_000_000
"""Less spare memory than this is kept, because allocating it again costs more than it is worth."""

IDLE_S = 60.0
"""A device that has served nothing for this long, in seconds, frees its spare memory."""


class SpareMemory:
    """Watches how much memory the process uses beyond the least it has needed.

    Args:
        variants: The variants that the device serves.
        samples: Makes inputs for a variant: the given number of items.
        idle_s: Returns how long the device has served nothing, in seconds.
        resident: Returns the memory that the process uses, in bytes.
    """

    def __init__(
        self,
        variants: ServedVariants,
        samples: Callable[[Key, int], list[Item]],
        idle_s: Callable[[], float],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """Start without a known minimum."""
        self._variants = variants
        self._samples = samples
        self._idle_s = idle_s
        self._resident = resident
        self._needed: int | None = None

    def look(self) -> None:
        """Have sessions free their spare memory, if it is large and the device idles."""
        taken = self._resident()
        self._needed = min(taken, self._needed or taken)
        if taken - self._needed < SPARE_BYTES or self._idle_s() < IDLE_S:
            return
        lock, residency = self._variants.lock, self._variants.residency
        for key in residency.keys:
            if not lock.acquire(blocking=False):
                return  # the device is busy again
            try:
                if residency.is_loaded(key):
                    with self._variants.running(key, 1):
                        residency.runner(key).give_back(self._samples(key, 1))
            finally:
                lock.release()
        self._needed = self._resident()
