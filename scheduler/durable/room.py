"""How much durable work a target may be given at once, so that no request suffers from it.

A batch that has begun can't be taken back: what arrives meanwhile waits for its end. So a batch of
durable work may take a quarter of the shortest budget that requests have had lately. What takes
longer even alone is still run, but for so small a part of the time that only as many requests can
meet it: what it was expected to take counts until it has ended, then what it took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetState

PART = 4
"""A batch of durable work takes at most this part of the shortest budget."""

LONGEST_NS = 250_000_000
"""What it takes at most where no request has come lately: the first one may come now."""

LATELY_NS = 30_000_000_000
"""How long a request is remembered, at least; at most twice as long."""

SHARE = 50
"""What blocks a request for too long gets one part of so many of a target's time."""

QUANTILE = 0.5
"""What a batch is expected to take. The core asks for the same of all that it sends; any other
quantile would, asked for here, learn from other batches than when the journal is played again."""


class _Block(NamedTuple):
    """A task that keeps a target for too long, and until when that is then left alone."""

    seq: int
    since_ns: int
    until_ns: int


class Room:
    """Remembers what budgets requests have, and which targets must be left alone."""

    def __init__(self) -> None:
        """No request has come."""
        self._shortest_ns: int | None = None
        self._before_ns: int | None = None
        self._turned_ns = 0
        self._blocks: dict[str, _Block] = {}

    def note(self, budget_ns: int, now_ns: int, may_be_met: Callable[[], bool]) -> None:
        """A request has come; one that can't be met anyway is none to leave room for."""
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
        """How long a batch may take so that it blocks no request; None where none has come."""
        if now_ns - self._turned_ns > LATELY_NS:
            self._turn(now_ns)
        known = [ns for ns in (self._shortest_ns, self._before_ns) if ns is not None]
        return min(min(known) // PART, LONGEST_NS) if known else None

    def closed_until_ns(self, target_id: str) -> int:
        """Until when a target must be left alone, because durable work has blocked it."""
        block = self._blocks.get(target_id)
        return block.until_ns if block is not None else 0

    def batch(self, curve: LatencyCurve, waiting: int, now_ns: int) -> int:
        """How many of one class a target may be given at once, at least one."""
        most_ns = self._most_ns(now_ns)
        sizes = [size for size in curve.batch_sizes if size <= waiting]
        fitting = [size for size in sizes if curve.predict(size, QUANTILE) <= most_ns]
        return max(fitting, default=1)

    def given(self, target_id: str, curve: LatencyCurve, seqs: Sequence[int], now_ns: int) -> None:
        """A target is given a batch: where that blocks requests, it is left alone for long."""
        takes_ns = curve.predict(len(seqs), QUANTILE)
        if self._blocks_requests(takes_ns, now_ns):
            self._blocks[target_id] = _Block(seqs[0], now_ns, now_ns + SHARE * takes_ns)

    def took(self, seq: int, took_ns: int | None, now_ns: int) -> None:
        """A task has left its target, after so long there: 0 where it never began.

        None where nobody measured it; it is the time since the target was given it.

        A device that was slow for a moment is expected to be slow still, and would be left alone
        for that much longer, with nothing to show that it isn't.
        """
        for target_id, block in self._blocks.items():
            if block.seq == seq:
                took_ns = now_ns - block.since_ns if took_ns is None else took_ns
                if self._blocks_requests(took_ns, now_ns):
                    until_ns = block.since_ns + SHARE * took_ns
                    self._blocks[target_id] = block._replace(until_ns=until_ns)
                else:
                    del self._blocks[target_id]
                return

    def _blocks_requests(self, takes_ns: int, now_ns: int) -> bool:
        return self.longest_ns(now_ns) is not None and takes_ns > self._most_ns(now_ns)

    def _most_ns(self, now_ns: int) -> int:
        longest_ns = self.longest_ns(now_ns)
        return LONGEST_NS if longest_ns is None else longest_ns


def can_be_met(kind: RequestClass, budget_ns: int, targets: Iterable[TargetState]) -> bool:
    """Whether a target is known that ever was as fast: no task harms what is late anyway.

    Only what was measured is asked: curves, asked for what the core does not ask for, would learn
    otherwise than when the journal is played again.
    """
    return any(
        _least_ns(offer, kind) <= budget_ns for target in targets for offer in target.usable(kind)
    )


def _least_ns(offer: Offer, kind: RequestClass) -> float:
    """The least that an item was measured to take, or a smaller one its part of that."""
    part = 1.0
    if offer.item_shapes and kind.shapes:
        measured = max(1, offer.elements(offer.item_shapes))
        part = min(1.0, offer.elements(kind.shapes) / measured)
    return part * min(offer.latency_ns[1])
