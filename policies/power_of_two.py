"""`power_of_two`: the less loaded of two targets by chance. A control.

Rule: of the targets that could finish a new request in time were they to serve it next, two are
drawn; the one that would sooner be through with what it runs and what it was given gets it. There
it waits, whatever the others do.

Inputs: the predicted load of two targets. Wins with many like targets, where it is nearly as good
as looking at all of them. Loses with few and unlike ones, and where deadlines differ.

Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS
12(10), 2001. Chance is from the seed in the options, so that the same events bring the same
commands.
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
        quantile: Which quantile of latency to count on, from 0 to 1.
        seed: Of its chance.
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
        """Gives out what is new, and serves."""
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
