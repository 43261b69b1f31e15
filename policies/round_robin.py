"""`round_robin`: each request to the next target in turn. A control.

Rule: a request is given on arrival to the next target, in turn, of those that could finish it in
time were they to serve it next; there it waits, whatever the others do. A target serves what it
was given, the most urgent first.

Inputs: which targets have the model; nothing of what waits there. Wins where all targets are
equally fast and requests equally heavy: nothing is simpler to foresee. Loses with unlike
targets, where the slowest gets as much as the fastest.

Source: common knowledge; the default of most load balancers.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.binding import Binding
from policies.parts.outlook import Bid
from scheduler.core.policy import Decision, View
from scheduler.core.requests import Request


class RoundRobin:
    """Targets in turn.

    Args:
        quantile: Which quantile of latency to count on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._binding = Binding(quantile, self._choose, "its turn")
        self._last: dict[str, int] = {}
        self._turn = 0

    def decide(self, view: View) -> Iterator[Decision]:
        """Gives out what is new, and serves."""
        if self._binding.is_new(view):
            self._last.clear()
            self._turn = 0
        yield from self._binding.decide(view)

    def _choose(self, _request: Request, bids: list[Bid], _binding: Binding) -> Bid:
        """The one whose last turn was longest ago."""
        bid = min(bids, key=lambda bid: self._last.get(bid.target_id, 0))
        self._turn += 1
        self._last[bid.target_id] = self._turn
        return bid
