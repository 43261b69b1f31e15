"""`stability`: the batch that leaves the least lateness in all queues.

Rule: for each batch that an open target could take (class, variant, size), the lateness of the
queues after it is predicted: of the first request in each other queue if it came next, and of the
last one in each queue if the queues were then served one after the other at their best rate. The
target takes the batch with the smallest sum. If nothing would be late, it takes the most urgent
request, in the batch with the best throughput.

Inputs: deadlines, latencies and lengths of all queues. Wins when bursts of several classes compete
for one target. Loses under lasting overload, where some lateness is unavoidable and weights are
ignored. A decision takes time in proportion to the square of the number of classes.

Source: one-step look-ahead on predicted tardiness; see A. P. J. Vepsalainen, T. E. Morton,
"Priority Rules for Job Shops with Weighted Tardiness Costs", Management Science 33(8), 1987.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import Candidate, candidates, serve
from scheduler.core.policy import Decision, Place, View
from scheduler.core.queues import ClassQueue
from scheduler.core.targets import TargetState


class Stability:
    """The least predicted lateness over all queues.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target."""
        return serve(self._outlook, view, self._steadiest)

    def _steadiest(self, target: TargetState) -> Place | None:
        waiting = self._outlook.waiting(target)
        waiting.sort(key=lambda found: found[0].soonest_ns())
        best = None
        for each in candidates(self._outlook, target):
            late_ns = _lateness_ns(each, waiting)
            rate = len(each.batch) / each.latency_ns
            key = (each.priority, late_ns, each.deadline_ns, -rate)
            if best is None or key < best[0]:
                best = key, each
        if best is None:
            return None
        (_, late_ns, _, _), chosen = best
        return chosen.place(f"leaves {late_ns / 1e6:.1f} ms of lateness in the queues")


def _lateness_ns(chosen: Candidate, waiting: list[tuple[ClassQueue, Bid]]) -> float:
    """The total lateness of a target's queues after a batch."""
    total_ns = 0.0
    end_ns: float = chosen.done_ns
    for queue, bid in waiting:
        left = len(queue)
        if queue is chosen.queue:
            left -= len(chosen.batch)
        elif (late_ns := chosen.done_ns + bid.one_ns() - queue.soonest_ns()) > 0:
            total_ns += late_ns
        end_ns += left / max(curve.ladder(0.5).rate[-1] for curve in bid.curves)
        if left:
            last_ns = queue.level(queue.head().priority)[-1].deadline_ns
            total_ns += max(0.0, end_ns - last_ns)
    return total_ns
