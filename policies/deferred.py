"""`deferred`: waits for a larger batch as long as one stays feasible. Not work-conserving.

Rule: an open target takes the class whose batch must start first. If a larger batch size is
worthwhile but the queue does not fill the next one yet, the batch is deferred until the last moment
at which that size could start and still keep the most urgent request in time, less the time that
the batches of the other classes need. Then it goes as it is. A batch that can't grow goes at once.
Of the batches that must start no later than the class that is due, the one with the most important
priority goes first.

Inputs: deadlines, latencies per batch size. Wins where batching pays, budgets are long and latency
is steady: batches are as large as deadlines allow, devices idle in between, and energy is saved.
Loses where latency is noisy or arrivals are bursty: the slack that would have helped is spent.

Source: L. Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling",
arXiv:2308.07470, 2023.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from policies.parts.outlook import Bid, Outlook
from policies.parts.serving import Candidate, batches
from scheduler.core.policy import Decision, Place, View, Wake
from scheduler.core.queues import ClassQueue
from scheduler.core.targets import TargetState


@dataclass(frozen=True, slots=True)
class _Deferred:
    """The batch that a class could send now, and until when it may wait to grow."""

    candidate: Candidate
    until_ns: int


WORTHWHILE = 1.03
"""A larger batch must raise throughput by this factor to be worth the longer wait."""


class Deferred:
    """Sends batches at the last moment.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Sends batches that can't wait or can't grow, and yields a wake-up for the rest."""
        outlook = self._outlook
        outlook.look(view)
        yield from outlook.doomed()
        for target in outlook.open_targets():
            while target.is_open(view.now_ns):
                decision = self._next(target, view.now_ns) or outlook.late_welcome(target)
                if decision is None:
                    break
                yield decision
                if isinstance(decision, Wake):
                    if late := outlook.late_welcome(target):
                        yield late
                    break
                outlook.look(view)
        yield from outlook.doomed()
        yield from outlook.second_tries()

    def _next(self, target: TargetState, now_ns: int) -> Place | Wake | None:
        start_ns = self._outlook.starts_ns[target.spec.id]
        found = [
            deferred
            for queue, bid in self._outlook.waiting(target)
            if (deferred := _deferred(queue, bid, start_ns)) is not None
        ]
        if not found:
            return None
        all_ns = sum([each.candidate.latency_ns for each in found])
        behind = min(found, key=lambda each: each.until_ns + each.candidate.latency_ns)
        until_ns = behind.until_ns + behind.candidate.latency_ns - all_ns
        if until_ns > max(now_ns, start_ns):
            return Wake(until_ns, "a larger batch stays feasible until then")
        ahead = [each for each in found if each.until_ns <= behind.until_ns]
        first = min(ahead, key=lambda each: (each.candidate.priority, each.until_ns))
        size = len(first.candidate.batch)
        return first.candidate.place(f"batch of {size}: can't wait or can't grow")


def _deferred(queue: ClassQueue, bid: Bid, start_ns: int) -> _Deferred | None:
    """The largest batch of a class that is in time, with the first variant that has one."""
    for (offer, ladder), curve in zip(bid.ladders(), bid.curves, strict=True):
        rates = curve.ladder(0.5).rate
        best: _Deferred | None = None
        for batch, latency_ns in batches(queue, bid, ladder, start_ns):
            done_ns = start_ns + latency_ns
            if best and done_ns > best.candidate.deadline_ns:
                break
            each = Candidate(queue, bid, offer, batch, latency_ns, done_ns)
            until_ns = 0
            larger = bisect_right(ladder.sizes, len(batch))
            if larger < len(rates) and rates[-1] > rates[larger - 1] * WORTHWHILE:
                until_ns = each.deadline_ns - ladder.latency_ns[larger]
            best = _Deferred(each, until_ns)
        if best is not None:
            return best
    return None
