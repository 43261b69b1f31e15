"""Whether a target waits that could serve: for a fuller batch, urgent requests, or another target.

It is better to wait if the loss behind every batch that could go now (`parts.meanwhile`) exceeds
its worth. Only what a wait saves counts: the loss of arrivals that are more important, or cost less
per weight. Behind others, served in its place, as much would be lost: where a model's deadlines are
short and much is asked for, its target would wait for ever. If two of the largest batches or more
are queued, capacity is short and waiting gains nothing. Then the loss must exceed the worth by
`FAR_MORE` times the batch's weight.

Callers that wait for their answers before they ask again send nothing while a target waits. So
arrivals during waits are counted, and the loss counts in the proportion in which the expected ones
came. Nor does anything wait if nearly all that came was refused. Of few arrivals the proportion is
uncertain, so the highest likely one counts: that of which they are `SURE` standard deviations
short. Their variance is their mean times their unevenness, which is 1 if they are independent.

Source: only arrivals that do not depend on the state of a queue see it as it is on average. R. W.
Wolff, "Poisson arrivals see time averages", Operations Research 30(2), 1982.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from policies.parts.coming import Coming
from policies.parts.meanwhile import Meanwhile
from policies.parts.outlook import Outlook
from policies.parts.serving import Candidate

FAR_MORE = 2.0
"""A batch whose net loss is this many times its own weight waits, however long the queue is."""

LEAST = 0.1
"""If less than this part of the expected arrivals are admitted, nothing waits. It is small because
under overload most are refused however soon a target serves."""

SURE = 1.5
"""By how many standard deviations arrivals may be fewer than in the mean."""

MEMORY = 1 / 2048
"""The weight of one arrival in the moving counts, so that waits are tried again now and then."""


class Patience:
    """Decides when to wait, and compares the arrivals during waits with those expected.

    Args:
        outlook: What the targets could do.
        coming: The recent arrivals.
        meanwhile: Gives the loss behind a batch.
    """

    def __init__(self, outlook: Outlook, coming: Coming, meanwhile: Meanwhile) -> None:
        """Starts before any wait."""
        self._outlook = outlook
        self._coming = coming
        self._meanwhile = meanwhile
        self._expected = self._came = self._admitted = 0.0
        self._since_ns = -1
        self._has_waited = False

    def look(self, arrived: int) -> None:
        """Ends the wait that lasted until now, if any; must be called at each event.

        Args:
            arrived: The number of arrivals.
        """
        self._has_waited = self._since_ns >= 0
        if self._has_waited:
            waited_ns = self._outlook.view.now_ns - self._since_ns
            self._expected += self._coming.all_expected(waited_ns)
            self._came += arrived
            self._since_ns = -1
        elif arrived and self._expected:
            left = max(0.0, 1.0 - MEMORY * arrived)
            self._expected *= left
            self._came *= left
            self._admitted *= left

    def admitted(self) -> None:
        """Records that one of the arrivals was admitted."""
        if self._has_waited:
            self._admitted += 1.0

    def waits(self, best: Candidate, worth: float, lost: float, found: Sequence[Candidate]) -> bool:
        """Decides whether a target waits, and records it.

        Args:
            best: The batch with the highest worth.
            worth: Its worth per nanosecond less the loss behind it.
            lost: That loss.
            found: All batches that could go.
        """
        if worth > 0.0:
            return False
        saved = self._meanwhile.lost_to_cheaper(best)
        net = worth * best.lane_ns + lost - saved
        if net > 0.0:
            return False
        if net > -FAR_MORE * fsum([request.weight for request in best.batch]):
            largest = max([len(each.batch) for each in found if each.queue is best.queue])
            if len(best.queue) >= 2 * largest:
                return False
        if self._expected:
            part = min(1.0, self._part(self._came))
            if net + (1.0 - part) * saved > 0.0 or self._part(self._admitted) < LEAST:
                return False
        self._since_ns = self._outlook.view.now_ns
        return True

    def _part(self, count: float) -> float:
        """The highest likely proportion of the expected arrivals, if so many were counted."""
        unsure = SURE * sqrt(self._coming.uneven)
        return ((unsure + sqrt(unsure**2 + 4.0 * count)) / 2.0) ** 2 / self._expected
