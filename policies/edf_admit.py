"""`edf_admit`: `edf`, with admission control by simulating the queue ahead.

Rule: on each arrival the queues are simulated ahead in (priority, deadline) order, each request on
the target where it would be done first, batched where that makes no request late. If the new
request would be late, it is refused at once. It is not refused because requests behind it would be
late: while queues are short, predicted batches are small, and refusing for that would keep them
small. Service is that of `edf`.

Inputs: deadlines, priorities, latencies, all queued requests. Wins below and around capacity with
heterogeneous targets: most callers that it refuses are told at once, by a rule that is easy to
follow. Loses under overload, where it ignores weights and a later, more urgent request may displace
one already promised, and when queues are long: a decision on an arrival takes time in proportion to
what is queued.

Source: M. L. Dertouzos, A. K. Mok, "Multiprocessor On-Line Scheduling of Hard-Real-Time Tasks",
IEEE TSE 15(12), 1989 (guarantee by simulating the schedule).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.edf import Edf
from policies.parts.outlook import Outlook
from policies.parts.plan import plan
from policies.parts.serving import order
from scheduler.core.policy import Decision, Drop, View
from scheduler.core.requests import Request


class EdfAdmit:
    """Earliest deadline first, among admitted requests.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)
        self._edf = Edf(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses arrivals that would be late, then serves the most urgent requests."""
        arrivals = sorted(view.arrivals, key=order)
        if arrivals:
            self._outlook.look(view)
            yield from self._outlook.doomed()
            yield from self._refusals([r for r in arrivals if r in view.queues.get(r.kind, ())])
        yield from self._edf.decide(view)

    def _refusals(self, arrivals: list[Request]) -> Iterator[Drop]:
        """Tests arrivals one by one, leaving out those not yet tested."""
        undecided = {request.id for request in arrivals}
        for request in arrivals:
            undecided.discard(request.id)
            late = plan(self._outlook, without=undecided).late
            if any(request is each for each in late):
                why = "would be late behind what is queued"
                yield Drop(request, why, self._budgets(request))

    def _budgets(self, request: Request) -> dict[str, int]:
        """The smallest budget that each target could meet, behind everything planned on it."""
        outlook = self._outlook
        others = plan(outlook, without={request.id})
        return outlook.budgets_ns(request.kind, others.free_ns(outlook))
