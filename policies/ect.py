"""`ect`: sends each request to the target that would complete it first.

Rule: on arrival a request is assigned to the target with the earliest predicted completion, which
counts what the target runs, what it was assigned before, the transfer, and the request itself.
There the request waits, whatever the other targets do; each target serves its most urgent request
first.

Inputs: predicted latencies, transfer times and backlogs of all targets. Wins with heterogeneous
targets below capacity: it uses slow ones exactly when the fast ones are full. Loses under overload,
since it accepts requests that it will drop, and when predictions are off, since an assigned request
is not moved.

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
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._binding = Binding(quantile, _earliest, "earliest completion")

    def decide(self, view: View) -> Iterator[Decision]:
        """Assigns new requests, and serves."""
        yield from self._binding.decide(view)


def _earliest(_request: Request, bids: list[Bid], binding: Binding) -> Bid:
    return min(bids, key=lambda bid: binding.outlook.done_ns(bid) + binding.waiting_ns(bid))
