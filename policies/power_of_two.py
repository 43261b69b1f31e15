"""`power_of_two`: the less loaded of two randomly drawn targets. A baseline.

Rule: two targets are drawn from those that could finish a new request in time if they served it
next. The request is assigned to the one that would sooner finish what it runs and what it was
assigned before. There it waits, whatever the other targets do.

Inputs: the predicted load of two targets. Wins with many similar targets, where it is nearly as
good as comparing all of them. Loses with few or heterogeneous targets, and where deadlines differ.

Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS
12(10), 2001. The random draws come from the seed in the options, so that the same events give the
same commands.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.binding import Binding
from policies.parts.outlook import Bid
from scheduler.core.chance import Chance
from scheduler.core.policy import Decision, View
from scheduler.core.requests import Request


class PowerOfTwo:
    """The less loaded of two.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
        seed: The seed of its random draws.
    """

    def __init__(self, quantile: float = 0.95, seed: int = 1) -> None:
        """Takes its options from the configuration."""
        if not isinstance(seed, int):
            raise ValueError(f"seed must be a whole number, not {seed!r}")
        self.quantile = quantile
        self._seed = seed
        self._chance = Chance(seed)
        self._binding = Binding(quantile, self._choose, "the less loaded of two")

    def decide(self, view: View) -> Iterator[Decision]:
        """Assigns new requests, and serves."""
        if self._binding.is_new(view):
            self._chance = Chance(self._seed)
        yield from self._binding.decide(view)

    def _choose(self, _request: Request, bids: list[Bid], binding: Binding) -> Bid:
        first = bids[self._chance.below(len(bids))]
        others = [bid for bid in bids if bid is not first]
        if not others:
            return first
        second = others[self._chance.below(len(others))]
        starts_ns = binding.outlook.starts_ns
        return min(
            first, second, key=lambda bid: starts_ns[bid.target_id] + binding.waiting_ns(bid)
        )
