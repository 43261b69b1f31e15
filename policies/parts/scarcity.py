"""What a device's time is worth while more requests arrive than can be done.

A request that is served later takes time then that others need as well; served now, in a batch that
runs anyway, it saves that time. So besides its urgency, a request that can wait is worth what its
time would earn with another, times the probability that this time is needed: the share of missed
requests, times their mean weight per time, times its cost. Its own weight is the limit.

Source: the price of a scarce resource, as in the dual of a linear program; here it is learned from
what is refused or dropped.
"""

from __future__ import annotations

from policies.parts.admission import Admission
from policies.parts.outlook import Bid
from scheduler.core.requests import Request, RequestClass

LEAST = 0.02
"""While a smaller share of requests is missed, time has no price."""

MEMORY = 1 / 128
"""The weight of one request in the moving share of missed requests."""

PRICES = 1 / 32
"""The weight of one missed request in the price."""


class Scarcity:
    """Learns the price of time from missed requests.

    Args:
        admission: Gives the pace of each class.

    Attributes:
        share: The share of recent requests that were missed.
    """

    def __init__(self, admission: Admission) -> None:
        """Starts with nothing missed."""
        self._admission = admission
        self.share = self._per_ns = 0.0

    def came(self) -> None:
        """Records that a request was admitted."""
        self.share -= MEMORY * self.share

    def missed(self, request: Request) -> None:
        """Records that a request was refused, or dropped later."""
        self.share = min(1.0, self.share + MEMORY)
        cost_ns = self._admission.pace(request.kind).cost_ns
        if cost_ns:
            self._per_ns += PRICES * (request.weight / cost_ns - self._per_ns)

    def price(self, bid: Bid) -> float:
        """What a nanosecond of a target would earn with others, times how likely it is needed.

        Args:
            bid: What the target offers to the class that it would serve instead.
        """
        if self.share < LEAST:
            return 0.0
        part = self._admission.pace(bid.kind).parts()[bid.target_id]
        return self.share * self._per_ns * part

    def saved(self, kind: RequestClass) -> tuple[float, float]:
        """The value of the time that serving a request now saves later.

        Args:
            kind: The request's class.

        Returns:
            What its time would earn with another request, of which the caller counts at most the
            request's own weight; and how likely the time is needed. Both are 0 while hardly
            anything is missed.
        """
        if self.share < LEAST:
            return 0.0, 0.0
        return self._per_ns * self._admission.pace(kind).cost_ns, self.share
