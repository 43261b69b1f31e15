"""`round_robin`: sends each request to the next target in turn. A baseline.

Rule: on arrival a request is assigned to the next target, in turn, of those that could finish it in
time if they served it next. There it waits, whatever the other targets do. A target serves the
requests assigned to it, the most urgent first.

Inputs: which targets have the model, but not their backlogs. Wins where all targets are equally
fast and requests equally heavy: no policy is easier to predict. Loses with heterogeneous targets,
where the slowest gets as much as the fastest.

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
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._binding = Binding(quantile, self._choose, "its turn")
        self._last: dict[str, int] = {}
        self._turn = 0

    def decide(self, view: View) -> Iterator[Decision]:
        """Assigns new requests, and serves."""
        if self._binding.is_new(view):
            self._last.clear()
            self._turn = 0
        yield from self._binding.decide(view)

    def _choose(self, _request: Request, bids: list[Bid], _binding: Binding) -> Bid:
        """Chooses the target whose last turn was longest ago."""
        bid = min(bids, key=lambda bid: self._last.get(bid.target_id, 0))
        self._turn += 1
        self._last[bid.target_id] = self._turn
        return bid
