"""How fast the work of a class is done: what admission counts with."""

from __future__ import annotations

from bisect import bisect_right

from policies.outlook import Bid


class Pace:
    """How fast the work of one class is done, as long as predictions stay.

    Attributes:
        bids: What the targets offer to the class.
        target_ids: Which targets those are.
        ones_ns: How long each takes for a single request, at the promised quantile.
        cost_ns: The time that each of them spends on a request in full batches.
        starts_ns: When each target could start; the only part that changes all the time.
    """

    def __init__(self, bids: list[Bid]) -> None:
        self.bids = bids
        self.target_ids = {bid.target_id for bid in bids}
        self.ones_ns = [bid.one_ns() for bid in bids]
        self.starts_ns: list[int] = []
        self._curves = [curve for bid in bids for curve in bid.curves]
        self._version = self._versions()
        self._largest = max([curve.batch_sizes[-1] for curve in self._curves], default=1)
        self._shares_ns: dict[int, float] = {}
        self.cost_ns = self.share_ns(self._largest)

    def _versions(self) -> int:
        return sum([curve.version for curve in self._curves])

    def is_current(self) -> bool:
        """Whether no prediction has changed since."""
        return self._version == self._versions()

    def share_ns(self, count: int) -> float:
        """The time that each target spends per request of a backlog of `count`."""
        if count > self._largest:
            count = self._largest
        share = self._shares_ns.get(count)
        if share is None:
            rate = 0.0
            for bid in self.bids:
                ladders = [curve.ladder(0.5) for curve in bid.curves]
                best = max([m.rate[bisect_right(m.sizes, count) - 1] for m in ladders])
                rate += bid.target.spec.width * best
            share = self._shares_ns[count] = 1 / rate if rate else 0.0
        return share

    def ready_ns(self, work_ns: float) -> float:
        """When the targets have done so much more work together."""
        total = 0
        ready_ns = 0.0
        for count, start_ns in enumerate(sorted(self.starts_ns), 1):
            if count > 1 and ready_ns <= start_ns:
                break
            total += start_ns
            ready_ns = (total + work_ns) / count
        return ready_ns

    def done_ns(self, ready_ns: int) -> list[int]:
        """When each target has done a request that can start at that time at the earliest."""
        return [
            (start_ns if start_ns > ready_ns else ready_ns) + one_ns
            for start_ns, one_ns in zip(self.starts_ns, self.ones_ns, strict=True)
        ]
