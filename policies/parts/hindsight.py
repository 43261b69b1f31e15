"""How much of the losses that were expected behind batches came about.

Before a batch is sent, the loss behind it is estimated (`parts.meanwhile`): what comes while it
runs, can't wait, and finds no other target. What comes about is seen soon after: requests that are
refused, but could be in time on a target if that were not busy. Their worth beyond their cost, as
a share of the losses expected, tells how right the estimate is. On some fleets it is a tenth, on
others twice: so much depends on how many targets there are, and on who goes first.

Source: a prediction is corrected by the ratio of what came about to what was predicted, as in the
ratio estimators of sampling: W. G. Cochran, "Sampling Techniques", Wiley, 1977, chapter 6.
"""

from __future__ import annotations

from math import fsum

from policies.parts.admission import Admission
from policies.parts.coming import Coming
from policies.parts.outlook import Outlook
from policies.parts.serving import Candidate
from scheduler.core.requests import Request

PRIOR = 20.0
"""How many requests count as lost as expected, besides those that are known."""

MEMORY = 1 / 256
"""The weight of one request sent in the moving sums."""


class Hindsight:
    """Compares expected losses with those that came about.

    Args:
        outlook: What the targets could do.
        admission: Gives the pace of each class.
        coming: Knows what the targets earn per time.
    """

    def __init__(self, outlook: Outlook, admission: Admission, coming: Coming) -> None:
        """Starts as if all estimates were right."""
        self._outlook = outlook
        self._admission = admission
        self._coming = coming
        self._expected = self._actual = 0.0
        self._sent = self._weight = 0.0

    def ratio(self) -> float:
        """What came about, as a share of what was expected."""
        if not self._sent:
            return 1.0
        prior = PRIOR * self._weight / self._sent
        return (self._actual + prior) / (self._expected + prior)

    def sent(self, batch: Candidate, lost: float) -> None:
        """Records that a batch is sent.

        Args:
            batch: The batch.
            lost: The loss expected behind it.
        """
        count = len(batch.batch)
        left = max(0.0, 1.0 - MEMORY * count)
        self._expected = left * self._expected + lost
        self._actual *= left
        self._sent = left * self._sent + count
        self._weight = left * self._weight + fsum([request.weight for request in batch.batch])

    def refused(self, request: Request) -> None:
        """Records that an arrival is refused; it was lost behind each target that is busy."""
        now_ns, kind = self._outlook.view.now_ns, request.kind
        net = request.weight - self._coming.worth_per_ns * self._admission.pace(kind).cost_ns
        if net <= 0.0:
            return
        for bid in self._outlook.bids(kind):
            busy = self._outlook.free_ns(bid) > now_ns
            if busy and now_ns + bid.alone_ns() <= request.deadline_ns:
                self._actual += net
