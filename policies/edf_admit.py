"""`edf_admit`: `edf`, with admission by playing the queue ahead.

Rule: on an arrival the queues are played ahead in (priority, deadline) order, each request where
it would be done first, batched where that makes nobody late. If the new request would be late in
that, it is refused at once. It is not refused for those behind it: while queues are short, batches
look small, and refusing for that keeps them short. Service is that of `edf`.

Inputs: deadlines, priorities, latencies, all that is queued. Wins below and around capacity with
unlike targets: most of what it refuses hears it at once, by a rule that is easy to follow. Loses
under overload, where weights play no part and a promise may be pushed out by a later, more urgent
one, and when queues are long: a refusal costs time in proportion to what is queued.

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
    """Earliest deadline first, of what was admitted.

    Args:
        quantile: Which quantile of latency to count on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)
        self._edf = Edf(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses what would be late, then serves the most urgent."""
        arrivals = sorted(view.arrivals, key=order)
        if arrivals:
            self._outlook.look(view)
            yield from self._outlook.doomed()
            yield from self._refusals([r for r in arrivals if r in view.queues.get(r.kind, ())])
        yield from self._edf.decide(view)

    def _refusals(self, arrivals: list[Request]) -> Iterator[Drop]:
        """Admits one after the other, those not looked at yet left out."""
        undecided = {request.id for request in arrivals}
        for request in arrivals:
            undecided.discard(request.id)
            late = plan(self._outlook, without=undecided).late
            if any(request is each for each in late):
                why = "would be late behind what is queued"
                yield Drop(request, why, self._budgets(request))

    def _budgets(self, request: Request) -> dict[str, int]:
        """When each target could have the request done, after all that is planned for it."""
        outlook = self._outlook
        others = plan(outlook, without={request.id})
        return outlook.budgets_ns(request.kind, others.free_ns(outlook))
