"""Notice a batch that has run for so long that it is probably stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduler.core.figures import figure
from workers.profiling import LatencySamples
from workers.residency import Key

TIMES = 20
"""A batch that takes this many times its measured latency is not just slow."""


class StuckWatch:
    """Knows which batch a device is running, and since when.

    One thread runs batches and another asks, so the state is one tuple that is replaced whole.

    Args:
        after_s: How long any batch may run; None for ever.
        clock_ns: The monotonic clock.
    """

    def __init__(
        self, after_s: float | None, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._after_s = after_s
        self._clock_ns = clock_ns
        self._under_way: tuple[int, Key, int, int] | None = None

    @contextmanager
    def running(self, key: Key, count: int, latency_ns: LatencySamples) -> Iterator[None]:
        """Mark a batch as running within a block.

        Args:
            key: The model and the variant.
            count: The number of items, which may run one after the other.
            latency_ns: The measured latencies by batch size; see `Offer`.
        """
        usual_ns = count * latency_ns[1][-1]
        self._under_way = self._clock_ns(), key, count, usual_ns
        try:
            yield
        finally:
            self._under_way = None

    def verdict(self) -> str | None:
        """Describe the stuck batch for people, or return None."""
        under_way = self._under_way
        if under_way is None or self._after_s is None:
            return None
        began_ns, (model, variant), count, usual_ns = under_way
        took_s = (self._clock_ns() - began_ns) / 1e9
        if took_s <= max(self._after_s, TIMES * usual_ns / 1e9):
            return None
        return (
            f"a batch of {count} of {model}/{variant} has run for {took_s:.0f} s, "
            f"though at most {figure(usual_ns / 1e6)} ms were expected"
        )
