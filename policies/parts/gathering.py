"""Whether requests arrive in bunches, like frames of cameras that are triggered together.

A policy that sends the first requests of a bunch at once fills every free target, including slow
ones, with a batch of one. A millisecond later the rest arrives, and its budgets are too short to
wait for these batches. So if more requests mostly follow at once, the first ones are held for a
share of their batch's time. Nothing is held if none follow, as with a single camera, or if all
requests are in time anyway and holding would only delay them.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.parts.outlook import Outlook
from policies.parts.serving import Candidate
from scheduler.core.policy import Wake
from scheduler.core.requests import Request

SHARE = 0.1
"""The first requests of a bunch wait for at most this share of their batch's time."""

LEAST_NS = 250_000
"""If the wait would be shorter than this, nothing is held: a daemon's timers are not as precise."""

RESERVE_NS = 1_000_000
"""A held batch keeps at least this much slack, and at least half of the longest wait."""

MEMORY = 0.125
"""The weight of the newest request that arrived at empty queues in the moving average."""

SURE = 0.7
"""Requests are held if at least this share of earlier ones was followed. Even half of independent
arrivals are followed at times, and under overload waiting costs."""

NEEDED = 64
"""For how many bunches requests may be held after one could not be in time."""

UNKNOWN = 0.5
"""The initial share; after four bunches the next one is held."""


class Gathering:
    """Holds requests that arrive at empty queues, if more mostly follow soon after.

    Args:
        outlook: The queues, and what the targets could do.
    """

    def __init__(self, outlook: Outlook) -> None:
        """Starts before any arrival."""
        self._outlook = outlook
        self._odds = UNKNOWN
        self._first_ns = -1
        self._soon_ns: int | None = None
        self._needed = 0

    def missed(self) -> None:
        """Records that a request was refused or given up."""
        self._needed = NEEDED

    def look(self, arrivals: Sequence[Request]) -> None:
        """Takes in new arrivals; must be called at each event, before any is refused.

        Args:
            arrivals: The arrivals of the view.
        """
        if not arrivals:
            return
        view = self._outlook.view
        if self._soon_ns is not None:
            followed = view.now_ns <= self._soon_ns
            self._odds += MEMORY * (followed - self._odds)
            self._soon_ns = None
            if followed:
                return
        count, queues = len(arrivals), view.queues
        if len(queues) > count or sum(map(len, queues.values())) > count:
            return  # others are queued
        self._first_ns = view.now_ns
        self._needed = max(0, self._needed - 1)
        bids = self._outlook.bids(arrivals[0].kind)
        if bids:
            self._soon_ns = view.now_ns + int(SHARE * min([bid.one_ns() for bid in bids]))

    def wait(self, candidate: Candidate) -> Wake | None:
        """The time until which a batch that could go now is held; None if it is not."""
        if self._odds < SURE or not self._needed:
            return None
        patience_ns = int(SHARE * candidate.latency_ns)
        reserve_ns = max(patience_ns // 2, RESERVE_NS)
        now_ns = self._outlook.view.now_ns
        until_ns = min(
            self._first_ns + patience_ns,
            now_ns + candidate.deadline_ns - candidate.done_ns - reserve_ns,
        )
        if until_ns <= now_ns or patience_ns < LEAST_NS or not _can_grow(candidate):
            return None
        return Wake(until_ns, "more requests mostly follow at once")


def _can_grow(candidate: Candidate) -> bool:
    curve = candidate.bid.target.curve(candidate.offer)
    return len(candidate.batch) < curve.batch_sizes[-1]
