"""Measuring what is served between the batches that are served, for it may be faster by now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import ceil

from workers.batches import Item
from workers.judging import SAMPLES
from workers.profiling import Effort, Ladder, measure_ladder
from workers.repository import Repository
from workers.residency import Key, Residency
from workers.sampling import sample_items

_GAP_S = 0.001
"""Between runs that measure what is served: others who wait for the device get it."""

_FASTER = 0.9
"""What is measured again replaces what was known if it takes at most this share of the time."""

_IDLE_S = 1.0
"""A device that has served nothing for so long idles, and may be measured at length."""

_GLIMPSES = 3
"""On one that is busy so many single items tell how fast it is now, after one to warm up."""


class MeasuringAgain:
    """Measures variants of one device.

    Args:
        repository: The models.
        residency: What is in memory, and runs.
        lock: Held by whoever runs something.
        running: Within what it makes of a variant and a number of items, those run.
        effort: How much time to spend where nothing else is served.
    """

    def __init__(
        self,
        repository: Repository,
        residency: Residency,
        lock: threading.RLock,
        running: Callable[[Key, int], AbstractContextManager[None]],
        effort: Effort | None,
    ) -> None:
        """Nothing was served yet."""
        self._models = repository.models
        self._residency = residency
        self._lock = lock
        self._running = running
        self._effort = effort
        self._served_s = time.monotonic() - _IDLE_S

    def served(self) -> None:
        """The device has just served something."""
        self._served_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether it has served nothing for a while."""
        return self.idle_s >= _IDLE_S

    @property
    def idle_s(self) -> float:
        """For how long it has served nothing."""
        return time.monotonic() - self._served_s

    def at_length(self, key: Key, known: Ladder) -> Ladder:
        """The latencies of a variant now; none if it is no faster than was known.

        Raises:
            Exception: Of the runtime's library.
        """
        alone = self._measure(key, 1)  # at first, so that nobody has to wait for long
        if _nearly_all(alone[1]) > _FASTER * _nearly_all(known[1]):
            return {}
        return self._measure(key, max(known))

    def briefly(self, key: Key, known: Ladder) -> Ladder:
        """What was known, as much faster as a few single items are; none if they are not.

        What makes a device faster does so with batches of all sizes.

        Raises:
            Exception: Of the runtime's library.
        """
        known_ns, slowest_ns = _nearly_all(known[1]), 0
        items = sample_items(self._models[key[0]], 1)
        self._timed(key, items)
        for _ in range(_GLIMPSES):
            slowest_ns = max(slowest_ns, self._timed(key, items))
            if slowest_ns > _FASTER * known_ns:
                return {}
        return {
            size: tuple([max(1, ns * slowest_ns // known_ns) for ns in samples])
            for size, samples in known.items()
        }

    def _measure(self, key: Key, max_batch: int) -> Ladder:
        """The latencies of what is served, in which the batches in between don't count."""
        samples = sample_items(self._models[key[0]], SAMPLES)
        taken_ns = 0

        def run_batch(size: int) -> None:
            nonlocal taken_ns
            taken_ns += self._timed(key, [samples[i % SAMPLES] for i in range(size)])

        return measure_ladder(run_batch, max_batch, effort=self._effort, clock_ns=lambda: taken_ns)

    def _timed(self, key: Key, batch: list[Item]) -> int:
        """How long a batch takes by itself."""
        time.sleep(_GAP_S)
        with self._lock:
            runner = self._residency.runner(key)
            began_ns = time.perf_counter_ns()
            with self._running(key, len(batch)):
                runner.run_batch(batch)
            return time.perf_counter_ns() - began_ns


def _nearly_all(samples: Sequence[int]) -> int:
    """Within which time nineteen of twenty were done."""
    return samples[ceil(0.95 * len(samples)) - 1]
