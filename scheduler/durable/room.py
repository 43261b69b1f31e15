"""How much durable work a target may be given at once, so that no request suffers from it.

A batch that has started can't be stopped, so requests that arrive meanwhile wait for its end. A
batch of durable work may therefore take a quarter of the shortest recent request budget, and a
quarter of a second at most, unless it is a single task. A task that takes longer than that quarter
of a budget even on its own, or that the policy has refused again and again, still runs, but
in so small a share of the target's time that it delays only that share of the requests. The share
counts the predicted time until the task has ended, and the actual time afterwards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetState

PART = 4
"""A batch of durable work takes at most the shortest budget divided by this."""

LONGEST_NS = 250_000_000
"""The longest time of several tasks, also when no request came recently: one may come now. A single
task may take longer, since it can't be made shorter."""

LATELY_NS = 30_000_000_000
"""How long a request's budget is remembered, at least; at most twice as long."""

SHARE = 50
"""A task that would block requests for too long gets one part in this many of a target's time."""

TRICKLE = 400
"""A task that the policy has refused again and again gets one part in this many: it is likely to
make a request late, and 99 % of them are to be in time all the same."""

QUANTILE = 0.5
"""The quantile of latency predictions."""


class _Block(NamedTuple):
    """A task that holds its target for too long, and until when that target gets no other.

    Attributes:
        seq: The task's number.
        since_ns: When the target was given the task.
        until_ns: When it may be given another.
        share: The share of the target's time that such tasks get, as in `SHARE`.
    """

    seq: int
    since_ns: int
    until_ns: int
    share: int


class Room:
    """Remembers the budgets of requests, and which targets are closed to durable work."""

    def __init__(self) -> None:
        """Starts with no request seen."""
        self._shortest_ns: int | None = None
        self._before_ns: int | None = None
        self._turned_ns = 0
        self._blocks: dict[str, _Block] = {}

    def note(self, budget_ns: int, now_ns: int, may_be_met: Callable[[], bool]) -> None:
        """Notes a request's budget, unless the request can't be met anyway."""
        if now_ns - self._turned_ns > LATELY_NS:
            self._turn(now_ns)
        is_shorter = self._shortest_ns is None or budget_ns < self._shortest_ns
        if is_shorter and may_be_met():
            self._shortest_ns = budget_ns

    def _turn(self, now_ns: int) -> None:
        missed = now_ns - self._turned_ns > 2 * LATELY_NS
        self._before_ns = None if missed else self._shortest_ns
        self._shortest_ns = None
        self._turned_ns = now_ns

    def longest_ns(self, now_ns: int) -> int | None:
        """How long a task may take without blocking requests; None if none came recently."""
        if now_ns - self._turned_ns > LATELY_NS:
            self._turn(now_ns)
        known = [ns for ns in (self._shortest_ns, self._before_ns) if ns is not None]
        return min(known) // PART if known else None

    def closed_until_ns(self, target_id: str) -> int:
        """Until when a target is closed to durable work, because such work blocked it; else 0."""
        block = self._blocks.get(target_id)
        return block.until_ns if block is not None else 0

    def batch(self, curve: LatencyCurve, waiting: int, now_ns: int) -> int:
        """How many tasks of one class a target may be given at once, at least one."""
        longest_ns = self.longest_ns(now_ns)
        most_ns = LONGEST_NS if longest_ns is None else min(longest_ns, LONGEST_NS)
        ladder = curve.glance(QUANTILE)
        at, count = ladder.largest(waiting)
        while at and ladder.latency_ns[at] > most_ns:
            at -= 1
            count = ladder.sizes[at]
        return count

    def given(
        self,
        target_id: str,
        curve: LatencyCurve,
        seqs: Sequence[int],
        now_ns: int,
        insists: bool = False,
    ) -> None:
        """Notes that a target is given a batch, and closes the target if that blocks requests.

        Args:
            target_id: The target.
            curve: How long its batches take.
            seqs: The numbers of the tasks.
            now_ns: The current time.
            insists: Whether the policy has refused the only task again and again.
        """
        takes_ns = likely_ns(curve, len(seqs))
        if insists or self._blocks_requests(takes_ns, now_ns):
            share = TRICKLE if insists else SHARE
            self._blocks[target_id] = _Block(seqs[0], now_ns, now_ns + share * takes_ns, share)

    def took(self, seq: int, took_ns: int | None, now_ns: int) -> None:
        """Notes that a task has left its target, and corrects until when the target is closed.

        A device that was slow for a moment is predicted to stay slow. Without this correction it
        would be closed for that much longer, with no run to show that it is fast again.

        Args:
            seq: The task's number.
            took_ns: Its time on the target; 0 if it never started. None if nobody measured it: the
                time since the target was given the task then counts.
            now_ns: The current time.
        """
        for target_id, block in self._blocks.items():
            if block.seq == seq:
                took_ns = now_ns - block.since_ns if took_ns is None else took_ns
                insisted = block.share == TRICKLE and took_ns
                if insisted or self._blocks_requests(took_ns, now_ns):
                    until_ns = block.since_ns + block.share * took_ns
                    self._blocks[target_id] = block._replace(until_ns=until_ns)
                else:
                    del self._blocks[target_id]
                return

    def _blocks_requests(self, takes_ns: int, now_ns: int) -> bool:
        longest_ns = self.longest_ns(now_ns)
        return longest_ns is not None and takes_ns > longest_ns


def likely_ns(curve: LatencyCurve, size: int) -> int:
    """How long a batch of so many tasks takes, as predicted."""
    ladder = curve.glance(QUANTILE)
    return ladder.latency_ns[bisect_left(ladder.sizes, size)]


def can_be_met(kind: RequestClass, budget_ns: int, targets: Iterable[TargetState]) -> bool:
    """Whether any target was ever measured fast enough for a budget.

    No task harms a request that would be late anyway. Only the stored measurements are read.
    """
    return any(
        _least_ns(offer, kind) <= budget_ns for target in targets for offer in target.usable(kind)
    )


def _least_ns(offer: Offer, kind: RequestClass) -> float:
    """The least measured time, scaled down for an item smaller than the measured one."""
    part = 1.0
    if offer.item_shapes and kind.shapes:
        measured = max(1, offer.elements(offer.item_shapes))
        part = min(1.0, offer.elements(kind.shapes) / measured)
    return part * min(offer.latency_ns[1])
