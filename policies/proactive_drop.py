"""`proactive_drop`: drops early what will be dropped late. Wraps any policy.

Rule: at each event the queues are played ahead in (priority, deadline) order, each request where
it would be done first. What would be late in that is dropped at once, so that its caller can do
something else and what is behind it has less to wait for. Then the wrapped policy decides.

Inputs: deadlines, latencies, all that is queued; and what the wrapped policy looks at. Wins around
policies without admission (`edf`, `fcfs`, `slackfit`) under overload: they serve what they keep.
Loses around those with one (`goodput`), which know better, and where latency is noisy: it drops
what luck would have served. It costs time in proportion to what is queued.

Source: J. R. Haritsa, M. J. Carey, M. Livny, "On Being Optimistic about Real-Time Constraints",
PODS 1990 (not serving the feasibly late); for inference the early drop of Nexus (SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.edf import Edf
from policies.parts.outlook import Outlook
from policies.parts.plan import plan
from policies.parts.wrapping import Wrapper
from scheduler.core.policy import Decision, Drop, Policy, View, decisions_of


class ProactiveDrop(Wrapper):
    """Drops what would be late behind what is queued, then lets another decide.

    Args:
        inner: The policy that decides about the rest; `edf` if none is given.
        quantile: Which quantile of latency to count on, from 0 to 1, where the inner policy has
            no `quantile` of its own.
    """

    def __init__(self, inner: Policy | None = None, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        super().__init__(inner or Edf(quantile), quantile)
        self._outlook = Outlook(self.quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Drops, then asks the inner policy."""
        outlook = self._outlook
        outlook.look(view)
        yield from outlook.doomed()
        found = plan(outlook)
        if late := found.late:
            free_ns = found.free_ns(outlook)
            for request in late:
                budgets = outlook.budgets_ns(request.kind, free_ns)
                if budgets:  # without targets it is unavailable, which the scheduler says
                    yield Drop(request, "would be late behind what is queued", budgets)
        yield from decisions_of(self.inner, view)
