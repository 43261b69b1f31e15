"""Measure served variants again, between the batches of requests; they may be faster by now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

from workers.judging import SAMPLES
from workers.profiling import Effort, LatencySamples, measure_ladder
from workers.residency import Key
from workers.served_variants import ServedVariants
from workers.tensors import Item

_GAP_S = 0.001
"""Pause before each measuring run, so that waiting requests get the device."""

_FASTER = 0.9
"""A new latency counts as faster if it is at most this share of the known one."""

_IDLE_S = 1.0
"""A device that has served nothing for this long is idle, and is measured at length."""

_GLIMPSES = 3
"""Single items that are timed on a busy device, after one to warm up."""


class MeasuringAgain:
    """Measures variants of one device again.

    Args:
        variants: The variants that the device serves.
        samples: Makes inputs for a variant: the given number of items.
        effort: How much time to spend while the device is idle.
    """

    def __init__(
        self,
        variants: ServedVariants,
        samples: Callable[[Key, int], list[Item]],
        effort: Effort,
    ) -> None:
        """Start as idle."""
        self._variants = variants
        self._samples = samples
        self._effort = effort
        self._served_s = time.monotonic() - _IDLE_S

    def served(self) -> None:
        """Record that the device has just served something."""
        self._served_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether the device has served nothing for `_IDLE_S`."""
        return self.idle_s >= _IDLE_S

    @property
    def idle_s(self) -> float:
        """The time since the device last served something, in seconds."""
        return time.monotonic() - self._served_s

    def at_length(self, key: Key, known: LatencySamples) -> LatencySamples:
        """A variant's current latencies; empty if it is not faster than known.

        Of a slow one, a single run decides, since requests may come and wait for each.

        Raises:
            Exception: The runtime's library failed.
        """
        fast_ns = _FASTER * _nearly_all(known[1])
        first_ns = self._timed(key, self._samples(key, 1))
        if first_ns > self._effort.slow_ns:
            is_faster = first_ns <= fast_ns
        else:
            is_faster = _nearly_all(self._measure(key, 1)[1]) <= fast_ns
        return self._measure(key, max(known)) if is_faster else {}

    def briefly(self, key: Key, known: LatencySamples) -> LatencySamples:
        """The known latencies, scaled by a few single items; empty if those are not faster.

        All batch sizes are assumed to have become faster by the same factor.

        Raises:
            Exception: The runtime's library failed.
        """
        known_ns, slowest_ns = _nearly_all(known[1]), 0
        items = self._samples(key, 1)
        self._timed(key, items)
        for _ in range(_GLIMPSES):
            slowest_ns = max(slowest_ns, self._timed(key, items))
            if slowest_ns > _FASTER * known_ns:
                return {}
        return {
            size: tuple([max(1, ns * slowest_ns // known_ns) for ns in samples])
            for size, samples in known.items()
        }

    def _measure(self, key: Key, max_batch: int) -> LatencySamples:
        """Measure latencies without counting the requests' batches that run in between."""
        samples = self._samples(key, SAMPLES)
        taken_ns = 0

        def run_batch(size: int) -> None:
            nonlocal taken_ns
            taken_ns += self._timed(key, [samples[i % SAMPLES] for i in range(size)])

        return measure_ladder(run_batch, max_batch, self._effort, clock_ns=lambda: taken_ns)

    def _timed(self, key: Key, batch: list[Item]) -> int:
        """The time of one batch in nanoseconds, without waiting for the device."""
        time.sleep(_GAP_S)
        with self._variants.lock:
            runner = self._variants.residency.runner(key)
            began_ns = time.perf_counter_ns()
            with self._variants.running(key, len(batch)):
                runner.run_batch(batch)
            return time.perf_counter_ns() - began_ns


def _nearly_all(samples: Sequence[int]) -> int:
    """The 95th percentile of ascending samples."""
    return samples[ceil(0.95 * len(samples)) - 1]
