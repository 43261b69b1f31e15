"""`proactive_drop`: drops early the requests that would be dropped late. A wrapper.

Rule: at each event the queues are simulated ahead in (priority, deadline) order, each request on
the target where it would be done first. Requests that would be late are dropped at once, so that
their callers can do something else and the requests behind them wait for less. Then the wrapped
policy decides.

Inputs: deadlines, latencies, all queued requests; and the inputs of the wrapped policy. Wins around
policies without admission control (`edf`, `fcfs`, `slackfit`) under overload: they serve what they
keep. Loses around those with it (`goodput`), which decide better, and where latency is noisy: it
drops requests that would have been served with luck. A decision takes time in proportion to what is
queued.

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
    """Drops requests that would be late behind the queue, then lets another policy decide.

    Args:
        inner: The policy that decides about the rest; `edf` if none is given.
        quantile: The latency quantile to rely on, from 0 to 1, where the inner policy has
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
                if budgets:  # without targets the scheduler ends it as unavailable
                    yield Drop(request, "would be late behind what is queued", budgets)
        yield from decisions_of(self.inner, view)
