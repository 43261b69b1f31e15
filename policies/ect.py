"""`ect`: each request to the target that would complete it first.

Rule: a request is given on arrival to the target with the earliest predicted completion: when it
is through with what it runs, then with what it was given and waits there, then the way there and
the request itself. There it waits, whatever the others do, and is served the most urgent first.

Inputs: predicted latencies, transfer times and backlogs of all targets. Wins with unlike targets
below capacity: it uses slow ones exactly when the fast ones are full. Loses under overload, since
it accepts what it will drop, and when predictions are off, since what was given is not moved.

Source: H. Topcuoglu, S. Hariri, M. Wu, "Performance-Effective and Low-Complexity Task Scheduling
for Heterogeneous Computing", IEEE TPDS 13(3), 2002 (HEFT's choice of processor); minimum
completion time in M. Maheswaran et al., JPDC 59(2), 1999.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.binding import Binding
from policies.parts.outlook import Bid
from scheduler.core.policy import Decision, View
from scheduler.core.requests import Request


class Ect:
    """Earliest completion time.

    Args:
        quantile: Which quantile of latency to count on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._binding = Binding(quantile, _earliest, "earliest completion")

    def decide(self, view: View) -> Iterator[Decision]:
        """Gives out what is new, and serves."""
        yield from self._binding.decide(view)


def _earliest(_request: Request, bids: list[Bid], binding: Binding) -> Bid:
    return min(bids, key=lambda bid: binding.outlook.done_ns(bid) + binding.waiting_ns(bid))
