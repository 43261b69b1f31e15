"""How long a device of this box stands idle between two batches, measured as it works."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

SAMPLES = 32
"""The usual time is that of so many batches, the last ones."""

ENOUGH = 8
"""So many are needed before anything is said."""

MATERIAL = 1.5
"""What is longer or shorter by less than this factor is no news."""

TELL_NS = 1_000_000_000
"""News is told no more often."""

LEAST_NS = 20_000
"""Less is taken to be this: a message takes a while."""


class Handover:
    """Compares when batches were sent to an idle worker, and were back, with how long they ran.

    What is left is the way there and back, and whoever had to be waited for on it. It passes
    between two batches as well, if the second is sent once the first is back.

    Args:
        clock_ns: The monotonic clock.

    Attributes:
        usual_ns: What it usually is, as it was last told; None until it is known.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Nothing was sent."""
        self.usual_ns: int | None = None
        self._clock_ns = clock_ns
        self._sent: tuple[int, int] | None = None
        self._taken_ns: deque[int] = deque(maxlen=SAMPLES)
        self._told_ns = 0

    def sent(self, run_id: int) -> None:
        """A batch goes to the worker, which has no other."""
        self._sent = run_id, self._clock_ns()

    def done(self, run_id: int, execute_ns: int) -> int | None:
        """A batch is back that ran so long; what is usual now, in ns, where that is news."""
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
