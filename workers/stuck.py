"""Notices a batch that has run for so long that it will hardly end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from workers.residency import Key

TIMES = 20
"""So many times what a batch took when it was measured is no bad moment any more."""


class StuckWatch:
    """Knows what a device runs, and since when.

    One thread runs batches, another asks: so what is under way is one tuple, exchanged whole.

    Args:
        after_s: How long a batch may run in any case; None is for ever.
        clock_ns: The monotonic clock.
    """

    def __init__(
        self, after_s: float | None, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._after_s = after_s
        self._clock_ns = clock_ns
        self._under_way: tuple[int, Key, int, int] | None = None

    @contextmanager
    def running(
        self, key: Key, count: int, latency_ns: Mapping[int, tuple[int, ...]]
    ) -> Iterator[None]:
        """Within it a batch runs.

        Args:
            key: The model and the variant.
            count: How many items, which may come to run one after the other.
            latency_ns: What batches took when they were measured, by their size; see `Offer`.
        """
        usual_ns = count * latency_ns[1][-1]
        self._under_way = self._clock_ns(), key, count, usual_ns
        try:
            yield
        finally:
            self._under_way = None

    def verdict(self) -> str | None:
        """What is stuck, for people; None if nothing is."""
        under_way = self._under_way
        if under_way is None or self._after_s is None:
            return None
        began_ns, (model, variant), count, usual_ns = under_way
        took_s = (self._clock_ns() - began_ns) / 1e9
        if took_s <= max(self._after_s, TIMES * usual_ns / 1e9):
            return None
        return (
            f"a batch of {count} of {model}/{variant} has run for {took_s:.0f} s, "
            f"where {usual_ns / 1e6:.3g} ms would be long"
        )
