"""What a device's time is worth while more comes than can be done.

A request that could as well be served later needs its time then, and so do others. Who is served
now in a batch that is full, anyway, saves it. So beside its urgency a request that can wait is
worth what its time would earn with somebody else, as likely as that is wanted: the share of the
requests that is missed, times their mean weight per time, times what it costs; its own weight at
most.

Source: the price of a resource that is scarce, as the dual of a linear program has it; here it is
learned from what is refused or dropped.
"""

from __future__ import annotations

from policies.parts.admission import Admission
from scheduler.core.requests import Request, RequestClass

LEAST = 0.02
"""While a smaller share is missed time has no price."""

MEMORY = 1 / 128
"""The part that one request has in the share that is missed."""

PRICES = 1 / 32
"""The part that one that is missed has in the price."""


class Scarcity:
    """Learns the price of time from what is missed.

    Args:
        admission: Knows what each class costs.

    Attributes:
        share: The share of requests that is missed, lately.
    """

    def __init__(self, admission: Admission) -> None:
        """Nothing has been missed."""
        self._admission = admission
        self.share = self._per_ns = 0.0

    def came(self) -> None:
        """A request was admitted."""
        self.share -= MEMORY * self.share

    def missed(self, request: Request) -> None:
        """One was refused, or dropped later."""
        self.share = min(1.0, self.share + MEMORY)
        cost_ns = self._admission.pace(request.kind).cost_ns
        if cost_ns:
            self._per_ns += PRICES * (request.weight / cost_ns - self._per_ns)

    def saved(self, kind: RequestClass) -> tuple[float, float]:
        """What it is worth that requests of a class need no time later.

        Args:
            kind: Their class.

        Returns:
            What the time of one would earn with somebody else, of which what it is worth itself is
            the most that counts, and how likely it is wanted; 0 while hardly anything is missed.
        """
        if self.share < LEAST:
            return 0.0, 0.0
        return self._per_ns * self._admission.pace(kind).cost_ns, self.share
