"""How fast the work of a class is done: what admission counts with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import sqrt

from policies.outlook import Bid

WORTHWHILE = 1.03
"""A larger batch must raise the rate by this factor, since it makes its requests wait longer."""


class Pace:
    """How fast the work of one class is done, as long as predictions stay.

    Attributes:
        bids: What the targets offer to the class.
        target_ids: Which targets those are.
        full: How many requests full batches on all of them hold.
        slowest_ns: How long a full batch takes on the slowest of them.
        cost_ns: The time that each of them spends on a request in full batches.
        jitter_ns: The square of the spread of full batches, per nanosecond of their work.
        starts_ns: When each target could start; the only part that changes all the time.
    """

    def __init__(self, bids: list[Bid]) -> None:
        self.bids = bids
        self.target_ids = {bid.target_id for bid in bids}
        self._curves = [curve for bid in bids for curve in bid.curves]
        self._version = self._versions()
        self.starts_ns: list[int] = []
        self.slowest_ns = 0
        self.jitter_ns = 0.0
        self.cost_ns = 0.0
        self._sizes = _worthwhile(bids)
        self._shares_ns: dict[int, float] = {}
        self._batches_ns: dict[int, list[int]] = {}
        self.full = len(bids) * (self._sizes[-1] if bids else 1)
        if bids:
            curve = bids[0].curves[0]
            median_ns = curve.ladder(0.5).latency_ns[-1]
            spread_ns = curve.ladder(bids[0].quantile).latency_ns[-1] - median_ns
            self.jitter_ns = spread_ns**2 / median_ns
            self._fastest_ns = [min(self.batch_ns(size)) for size in self._sizes]
            self.slowest_ns = max(self.batch_ns(self._sizes[-1]))
            self.cost_ns = self.share_ns(self._sizes[-1])

    def _versions(self) -> int:
        return sum([curve.version for curve in self._curves])

    def is_current(self) -> bool:
        """Whether no prediction has changed since."""
        return self._version == self._versions()

    def share_ns(self, count: int) -> float:
        """The time that each target spends per request of a backlog of `count`."""
        largest = self._sizes[-1]
        if count > largest:
            count = largest
        share = self._shares_ns.get(count)
        if share is None:
            rate = 0.0
            for bid in self.bids:
                ladders = [curve.ladder(0.5) for curve in bid.curves]
                rate += max([m.rate[bisect_right(m.sizes, count) - 1] for m in ladders])
            share = self._shares_ns[count] = 1 / rate if rate else 0.0
        return share

    def batch_ns(self, size: int) -> list[int]:
        """How long each target takes, with its fastest offer, for a batch of at least a size."""
        found = self._batches_ns.get(size)
        if found is None:
            found = self._batches_ns[size] = [
                min(
                    [m.latency_ns[min(bisect_left(m.sizes, size), len(m.sizes) - 1)] for m in rungs]
                )
                for rungs in ([ladder for _, ladder in bid.ladders()] for bid in self.bids)
            ]
        return found

    def largest(self, limit_ns: float) -> int:
        """The largest batch that any target has done within a time; at least 1."""
        return self._sizes[max(bisect_right(self._fastest_ns, limit_ns), 1) - 1]

    def ready_ns(self, work_ns: float) -> int:
        """When the targets have done so much more work together."""
        total = 0
        ready_ns = 0.0
        for count, start_ns in enumerate(sorted(self.starts_ns), 1):
            if count > 1 and ready_ns <= start_ns:
                break
            total += start_ns
            ready_ns = (total + work_ns) / count
        return int(ready_ns + sqrt(self.jitter_ns * work_ns / len(self.bids)))


def _worthwhile(bids: list[Bid]) -> list[int]:
    """The batch sizes up to the one beyond which hardly anything is gained."""
    sizes = {1}
    for bid in bids:
        ladder = bid.curves[0].ladder(0.5)
        enough = ladder.rate[-1] / WORTHWHILE
        sizes.update(ladder.sizes[: bisect_left(ladder.rate, enough) + 1])
    return sorted(sizes)
