"""Measures, in operation, how long a device of this box idles between two batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

SAMPLES = 32
"""The usual time is the median over this many recent batches."""

ENOUGH = 8
"""This many samples are needed before a time is reported."""

MATERIAL = 1.5
"""A change by less than this factor is not reported."""

TELL_NS = 1_000_000_000
"""Least time between two reports."""

LEAST_NS = 20_000
"""Lower bound of the usual time: a message always takes a while."""


class Handover:
    """Subtracts the execution time of batches sent to an idle worker from their round-trip time.

    The difference is the way there and back, including waits on it. The device idles for as long
    between two batches if the second is sent only once the first is back.

    Args:
        clock_ns: The monotonic clock.

    Attributes:
        usual_ns: The usual time as last reported; None until it is known.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Nothing was sent."""
        self.usual_ns: int | None = None
        self._clock_ns = clock_ns
        self._sent: tuple[int, int] | None = None
        self._taken_ns: deque[int] = deque(maxlen=SAMPLES)
        self._told_ns = 0

    def sent(self, run_id: int) -> None:
        """Notes that a batch was sent to a worker that has no other."""
        self._sent = run_id, self._clock_ns()

    def done(self, run_id: int, execute_ns: int) -> int | None:
        """Takes in a batch that is back; returns the usual time in ns if it is worth reporting."""
        if self._sent is None or self._sent[0] != run_id:
            return None
        now_ns = self._clock_ns()
        self._taken_ns.append(now_ns - self._sent[1] - execute_ns)
        self._sent = None
        before_ns = self.usual_ns
        is_soon = before_ns is not None and now_ns - self._told_ns < TELL_NS
        if is_soon or len(self._taken_ns) < ENOUGH:
            return None
        usual_ns = max(LEAST_NS, round(median(self._taken_ns)))
        if before_ns is not None and before_ns / MATERIAL < usual_ns < before_ns * MATERIAL:
            return None
        self.usual_ns, self._told_ns = usual_ns, now_ns
        return usual_ns
