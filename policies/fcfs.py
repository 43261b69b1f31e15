"""`fcfs`: first come, first served, like common inference servers; a baseline.

Rule: an open target takes the class of the request that has waited longest, in the largest batch
that pays for its queue (`Ladder.pays`), in order of arrival. Deadlines do not affect the order, and
there is no admission test. As the laws require, a request that is predicted to miss is dropped
rather than run, unless its caller accepts late results (as callers of common servers must).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from policies.parts.outlook import Bid, Outlook
from scheduler.core.latency import Ladder
from scheduler.core.policy import Decision, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState


class Fcfs:
    """First come, first served, in batches as large as the queue fills.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.5) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, the longest-waiting request first."""
        outlook = self._outlook
        outlook.look(view)
        yield from outlook.doomed()
        for target in view.open_targets():
            while target.is_open(view.now_ns):
                place = self._oldest(target)
                if place is None:
                    break
                yield place
                outlook.look(view)
        yield from outlook.second_tries()

    def _oldest(self, target: TargetState) -> Place | None:
        start_ns = self._outlook.starts_ns[target.spec.id]
        waiting = self._outlook.waiting(target)
        for queue, bid in sorted(waiting, key=lambda found: next(found[0].by_age()).id):
            for offer, ladder in bid.ladders():
                if batch := _largest(queue, bid, ladder, start_ns):
                    return Place(target.spec.id, offer, batch, "first come, first served")
        return None


def _largest(queue: ClassQueue, bid: Bid, ladder: Ladder, start_ns: int) -> tuple[Request, ...]:
    """The largest batch of the oldest requests that are in time or may be late."""
    room = bisect_left(ladder.sizes, len(queue))
    for at in range(min(room, len(ladder.sizes) - 1), -1, -1):
        done_ns = start_ns + bid.takes_ns(ladder, at, len(queue))
        welcome = (r for r in queue.by_age() if r.accept_late or r.deadline_ns >= done_ns)
        batch = tuple(islice(welcome, ladder.sizes[at]))
        if bid.pays(ladder, at, len(batch)):
            return batch
    return ()
