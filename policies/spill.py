"""`spill`: to remote targets only when the local ones would miss. Wraps any policy.

Rule: the wrapped policy sees and fills the local targets. A request goes to a remote target (one
flagged `remote`) when it would be late locally: when the local queues, played ahead in (priority,
deadline) order, find no place for it in time, or when the wrapped policy would drop it. Of the
remote targets that are in time, the one that costs least is taken, while the budget of the last
hour lasts. What only a busy remote target could finish is kept for it.

Inputs: deadlines, latencies, transfer times, costs, all that is queued; and what the wrapped
policy looks at. Wins with a cloud behind a box: bursts go there, and nothing else. Loses against
`cheapest` where remote targets cost nothing, since it leaves them idle.

Source: Y. Kang et al., "Neurosurgeon", ASPLOS 2017, for when remote work pays; bursting to the
cloud on a predicted miss is common practice.
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
    """Remote targets for what local ones would miss.

    Args:
        inner: The policy that decides about the local targets; `goodput` if none is given.
        budget_per_hour: What may be spent on remote targets in any hour, in the unit of the
            targets' costs; None is no limit. A policy that is swapped in has spent nothing.
        quantile: Which quantile of latency to count on, from 0 to 1, where the inner policy has
            no `quantile` of its own.

    Attributes:
        budget: What is left of `budget_per_hour`, also for a policy that wraps this one.
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
        """Sends away what would be late here, and asks the inner policy about the rest."""
        if self._away.near.look(view):
            self.budget.clear()
        self.budget.look(view.now_ns)
        yield from self._away.decide(view)


def _is_local(target: TargetState) -> bool:
    return not target.spec.remote
