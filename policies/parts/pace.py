"""How fast a class's work is done; the basis of admission."""

from __future__ import annotations

from bisect import bisect_right
from math import frexp, fsum

from policies.parts.outlook import Bid, Outlook
from scheduler.core.latency import Ladder
from scheduler.core.sizes import STEPS


class Pace:
    """How fast the work of one class is done, valid until predictions change.

    Attributes:
        bids: What the targets offer to the class.
        ids: The ids of these targets, in the same order.
        target_ids: The same as a set.
        full: How many requests the largest batch holds.
        at_once: How many requests all targets take at once, in their largest batches.
        cost_ns: The time per request that all targets together need in full batches: 1 over the sum
            of their rates, in nanoseconds.
        longest_ns: How long the longest batch takes.
        ones_ns: How long each target takes for a single request, including the way there, in the
            order of `ids`.
        least_ns: How long the fastest target takes for a single request, likewise.
        unlike_ns: How much longer the slowest takes than the fastest.
    """

    def __init__(self, bids: list[Bid]) -> None:
        self.bids = bids
        self.ids = tuple([bid.target_id for bid in bids])
        self.target_ids = frozenset(self.ids)
        self.ones_ns = [bid.alone_ns() for bid in bids]
        self._curves = [curve for bid in bids for curve in bid.curves]
        self._version = self._versions()
        largest = [max([curve.batch_sizes[-1] for curve in bid.curves]) for bid in bids]
        self.full = max(largest, default=1)
        widths = [bid.target.spec.width for bid in bids]
        self.at_once = sum([width * size for width, size in zip(widths, largest, strict=True)])
        self._shares_ns: dict[int, float] = {}
        self._parts: dict[str, float] = {}
        self.cost_ns = self.share_ns(self.full)
        longest = [curve.ladder(0.5).latency_ns[-1] for curve in self._curves]
        self.longest_ns = max(longest, default=0)
        self.least_ns = min(self.ones_ns, default=0)
        self.unlike_ns = max(self.ones_ns, default=0) - self.least_ns

    def _versions(self) -> int:
        return sum([curve.version for curve in self._curves])

    def is_current(self) -> bool:
        """Whether no prediction has changed since this was computed."""
        return self._version == self._versions()

    def share_ns(self, count: int) -> float:
        """Like `cost_ns`, but with the largest batches that pay for a backlog of `count`."""
        if count > self.full:
            count = self.full
        share = self._shares_ns.get(count)
        if share is None:
            rate = 0.0
            for bid in self.bids:
                ladders = [curve.ladder(0.5) for curve in bid.curves]
                best = max([_rate(ladder, count) for ladder in ladders])
                rate += bid.target.spec.width * best
            share = self._shares_ns[count] = 1 / rate if rate else 0.0
        return share

    def step(self, weight: float) -> int:
        """The step of the cost per weight of requests of this weight: four per power of two."""
        part, exponent = frexp(self.cost_ns / weight)
        return STEPS * exponent + int(2 * STEPS * part)

    def parts(self) -> dict[str, float]:
        """Each target's part, per batch run at once, of the rate at which all serve the class."""
        if not self._parts and self.bids:
            rates = [1 / bid.lane_ns(1, bid.one_ns()) for bid in self.bids]
            widths = [bid.target.spec.width for bid in self.bids]
            whole = fsum([width * rate for width, rate in zip(widths, rates, strict=True)])
            self._parts = {at: rate / whole for at, rate in zip(self.ids, rates, strict=True)}
        return self._parts

    def part(self, other: Pace) -> float:
        """The share of this class's targets that another class's work also occupies."""
        if other is self or other.ids == self.ids:
            return 1.0
        return len(self.target_ids & other.target_ids) / len(self.ids)

    def starts_ns(self, outlook: Outlook) -> list[int]:
        """When a message can leave for each target, in the order of `ids`."""
        return [outlook.free_ns(bid) for bid in self.bids]

    def soonest_ns(self, starts_ns: list[int], ready_ns: int) -> int:
        """The minimum of `done_ns`, without making a list, because every arrival needs it."""
        soonest_ns = -1
        for at, one_ns in enumerate(self.ones_ns):  # `zip` with `strict` is slow when compiled
            start_ns = starts_ns[at]
            done_ns = (start_ns if start_ns > ready_ns else ready_ns) + one_ns
            if done_ns < soonest_ns or soonest_ns < 0:
                soonest_ns = done_ns
        return soonest_ns

    def done_ns(self, starts_ns: list[int], ready_ns: int) -> list[int]:
        """When each target would have done a request that can't start before `ready_ns`.

        Args:
            starts_ns: When a message can leave for each target, in the order of `ids`.
            ready_ns: When the request can start at the earliest.
        """
        done_ns = []
        for at, one_ns in enumerate(self.ones_ns):
            start_ns = starts_ns[at]
            done_ns.append((start_ns if start_ns > ready_ns else ready_ns) + one_ns)
        return done_ns


def _rate(ladder: Ladder, count: int) -> float:
    """The highest throughput with batches of at most `count` requests."""
    at = bisect_right(ladder.sizes, count)
    rate = ladder.rate[at - 1]
    if at < len(ladder.sizes):
        rate = max(rate, count / ladder.latency_ns[at])
    return rate


def caught_up_ns(starts_ns: list[int], work_ns: float) -> float:
    """When targets have done an amount of work together, each from when it can start.

    Args:
        starts_ns: When a message can leave for each target; at least one.
        work_ns: How long all of them together need for the work.
    """
    work_ns *= len(starts_ns)
    at_ns, total = 0.0, 0
    for before, start_ns in enumerate(sorted(starts_ns)):
        if before and at_ns <= start_ns:
            break
        total += start_ns
        at_ns = (total + work_ns) / (before + 1)
    return at_ns
