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

from collections import deque
from collections.abc import Iterator

from policies.away import Away
from policies.goodput import Alone
from scheduler.core.policy import Decision, Policy, View
from scheduler.core.targets import TargetState

HOUR_NS = 3_600_000_000_000

STEP_NS = 1_000_000_000
"""What is spent within one of these is remembered as one sum, until all of it is an hour old."""


class Spill:
    """Remote targets for what local ones would miss.

    Args:
        inner: The policy that decides about the local targets; `goodput` if none is given.
        budget_per_hour: What may be spent on remote targets in any hour, in the unit of the
            targets' costs; None is no limit. A policy that is swapped in has spent nothing.
        quantile: The share of batches that must be done by the time that is counted on, where
            the inner policy has no `quantile` of its own.
    """

    def __init__(
        self,
        inner: Policy | None = None,
        budget_per_hour: float | None = None,
        quantile: float = 0.95,
    ) -> None:
        """Takes its options from the configuration."""
        if budget_per_hour is not None and budget_per_hour < 0:
            raise ValueError(f"budget_per_hour must be 0 or more, not {budget_per_hour}")
        self.inner = inner or Alone(quantile)
        self.quantile: float = getattr(self.inner, "quantile", quantile)
        self.budget_per_hour = budget_per_hour
        self.watches_runs: bool = getattr(self.inner, "watches_runs", False)
        self._away = Away(self.inner, self.quantile, _is_local, self._pays, self._covers)
        self._now_ns = 0
        self._spent: deque[tuple[int, float]] = deque()
        self._total = 0.0

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends away what would be late here, and asks the inner policy about the rest."""
        if self._away.near.look(view):
            self._spent.clear()
            self._total = 0.0
        self._now_ns = view.now_ns
        yield from self._away.decide(view)

    def covers(self, cost: float, now_ns: int) -> bool:
        """Whether the budget would allow a wrapper of this policy to spend so much."""
        self._now_ns = now_ns
        return self._covers(cost)

    def pays(self, cost: float, now_ns: int) -> bool:
        """Spends what a wrapper of this policy sends to a remote target, if the budget allows."""
        self._now_ns = now_ns
        return self._pays(cost)

    def _pays(self, cost: float) -> bool:
        """Spends what a batch costs, if the budget allows."""
        if not self._covers(cost):
            return False
        if self.budget_per_hour is not None and cost:
            until_ns = (self._now_ns // STEP_NS + 1) * STEP_NS + HOUR_NS
            self._total += cost
            if self._spent and self._spent[-1][0] == until_ns:
                cost += self._spent.pop()[1]
            self._spent.append((until_ns, cost))
        return True

    def _covers(self, cost: float) -> bool:
        return cost <= self._left(self._now_ns)

    def _left(self, now_ns: int) -> float:
        if self.budget_per_hour is None:
            return float("inf")
        if self._spent and self._spent[0][0] <= now_ns:
            while self._spent and self._spent[0][0] <= now_ns:
                self._spent.popleft()
            self._total = sum([each for _, each in self._spent])
        return self.budget_per_hour - self._total


def _is_local(target: TargetState) -> bool:
    return not target.spec.remote
