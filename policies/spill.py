"""`spill`: uses remote targets only if the local ones would miss. A wrapper.

Rule: the wrapped policy sees and fills the local targets. A request goes to a remote target (one
flagged `remote`) if it would be late locally: if the local queues, simulated ahead in (priority,
deadline) order, have no place for it in time, or if the wrapped policy would drop it. So does one
whose deadline would keep the next local batch small though more wait for it, except to another box
half of whose room is taken. Of the remote targets that are in time, it goes to the cheapest, as
long as the budget of the last hour allows. A request that only a busy remote target could finish is
kept for that target.

Inputs: deadlines, latencies, transfer times, costs, all queued requests; and the inputs of the
wrapped policy. Wins with a cloud behind a box: bursts go there, and nothing else. Loses to
`cheapest` where remote targets cost nothing, since it leaves them idle.

Source: Y. Kang et al., "Neurosurgeon", ASPLOS 2017, for when offloading pays; bursting to the cloud
on a predicted miss is common practice.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.goodput import Everywhere
from policies.parts.away import Away
from policies.parts.budget import HourlyBudget
from policies.parts.wrapping import Wrapper
from scheduler.core.policy import Decision, Policy, View
from scheduler.core.targets import TargetState


class Spill(Wrapper):
    """Sends requests to remote targets if local ones would miss.

    Args:
        inner: The policy that decides about the local targets; `goodput` if none is given.
        budget_per_hour: The most that may be spent on remote targets in any hour, in the unit of
            the targets' costs; None for no limit. A newly swapped-in policy starts with nothing
            spent.
        quantile: The latency quantile to rely on, from 0 to 1, where the inner policy has
            no `quantile` of its own.

    Attributes:
        budget: Tracks spending against `budget_per_hour`; a policy that wraps this one may use it.
    """

    def __init__(
        self,
        inner: Policy | None = None,
        budget_per_hour: float | None = None,
        quantile: float | None = None,
    ) -> None:
        """Takes its options from the configuration."""
        super().__init__(inner or Everywhere(quantile), quantile)
        self.budget = HourlyBudget(budget_per_hour)
        self._away = Away(
            self.inner, self.quantile, _is_local, self.budget.pays, self.budget.covers
        )

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends away requests that would be late here, and asks the inner policy about the rest."""
        if self._away.near.look(view):
            self.budget.clear()
        self.budget.look(view.now_ns)
        yield from self._away.decide(view)


def _is_local(target: TargetState) -> bool:
    return not target.spec.remote
