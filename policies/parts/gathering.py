"""Whether requests come in bunches, as the frames of cameras that are triggered together do.

Who sends the first of a bunch at once has it in a batch of one on every target that is free, the
slow ones too, for as long as that takes; a millisecond later the rest is there, and its budgets
are too short for what is left. So where others mostly follow at once, the first are held for a
share of the time that their batch would take. Where none do, as from one camera, nothing is held,
nor where all is in time without it, and would only come later.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.parts.outlook import Outlook
from policies.parts.serving import Candidate
from scheduler.core.policy import Wake
from scheduler.core.requests import Request

SHARE = 0.1
"""The first of a bunch wait for at most this share of the time that their batch takes."""

LEAST_NS = 250_000
"""Where that would be less nothing is held: the timers of a daemon are not as fine."""

RESERVE_NS = 1_000_000
"""What is held has at least this left before its deadline, and half of the longest wait."""

MEMORY = 0.125
"""How much the newest request that came while nothing waited counts, of all of them."""

SURE = 0.7
"""Something is held where more than so many of them were followed. Of arrivals that come by
themselves half are at times, and where there is too much to do anyway, to wait costs."""

NEEDED = 64
"""For so many bunches it is thought necessary after something could not be in time."""

UNKNOWN = 0.5
"""Of so many it is assumed at first; after four bunches the next one is held."""


class Gathering:
    """Holds what came while nothing waited, where more has mostly come soon after such requests.

    Args:
        outlook: What waits, and what the targets could do.
    """

    def __init__(self, outlook: Outlook) -> None:
        """Has seen nothing come."""
        self._outlook = outlook
        self._odds = UNKNOWN
        self._first_ns = -1
        self._soon_ns: int | None = None
        self._needed = 0

    def missed(self) -> None:
        """Something was refused, or given up."""
        self._needed = NEEDED

    def look(self, arrivals: Sequence[Request]) -> None:
        """Takes in what has come; to be called at each event, before anything is refused.

        Args:
            arrivals: Those of the view.
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
            return  # something else waits
        self._first_ns = view.now_ns
        self._needed = max(0, self._needed - 1)
        bids = self._outlook.bids(arrivals[0].kind)
        if bids:
            self._soon_ns = view.now_ns + int(SHARE * min([bid.one_ns() for bid in bids]))

    def wait(self, candidate: Candidate) -> Wake | None:
        """Until when a batch that could go now is held, if it is."""
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
        return Wake(until_ns, "others mostly follow at once")


def _can_grow(candidate: Candidate) -> bool:
    curve = candidate.bid.target.curve(candidate.offer)
    return len(candidate.batch) < curve.batch_sizes[-1]
