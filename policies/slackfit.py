"""`slackfit`: the most accurate variant whose time fits the slack of the most urgent request.

Rule: an open target takes the class of the most urgent request (by priority, then deadline) that
it can finish in time. Of the variants that can, it runs the most accurate one, in the largest
batch that keeps that request in time. Where no accuracy is stated, the owner's order of
preference stands for it. When load rises, queues grow, slack shrinks, and faster variants follow.

Inputs: deadlines, latencies, accuracies of the variants. Wins with models that have variants and
load that comes in bursts: quality gives way first. Loses where there is but one variant (it is
`edf` then), and under lasting overload, where it serves what is nearly lost.

Source: A. Khare et al., "SuperServe: Fine-Grained Inference Serving for Unpredictable Workloads",
NSDI 2025 (the SlackFit policy).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.outlook import Outlook
from policies.parts.serving import Candidate, candidates, serve
from scheduler.core.policy import Decision, Place, View
from scheduler.core.targets import TargetState


class SlackFit:
    """The most accurate that fits.

    Args:
        quantile: Which quantile of latency to count on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.95) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target, the most urgent requests first."""
        return serve(self._outlook, view, self._most_accurate)

    def _most_accurate(self, target: TargetState) -> Place | None:
        best = min(candidates(self._outlook, target), key=_preference, default=None)
        if best is None:
            return None
        return best.place(f"{best.offer.variant!r} fits the slack of the most urgent")


def _preference(each: Candidate) -> tuple[tuple[int, int, int], float, int, int]:
    """The most urgent first; of those alike the most accurate, then the largest batch."""
    head = each.batch[0]
    urgency = (head.priority, head.deadline_ns, head.id)
    accuracy = each.offer.accuracy
    return urgency, -(accuracy or 0.0), each.offer.rank, -len(each.batch)
