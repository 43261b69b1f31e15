"""`slackfit`: the most accurate variant that fits the slack of the most urgent request.

Rule: an open target takes the class of the most urgent request (by priority, then deadline) that it
can finish in time. Of the variants that can, it runs the most accurate one, in the largest batch
that keeps that request in time. If no accuracy is stated, the owner's order of preference decides.
As load rises, queues grow, slack shrinks, and faster variants are chosen.

Inputs: deadlines, latencies, accuracies of the variants. Wins with models that have several
variants where accuracy matters more than a few late requests. Loses with a single variant (where it
equals `edf`), and under lasting overload, where it serves requests that are nearly lost.

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
    """The most accurate variant that fits.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
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
    """A sort key: the most urgent first, then the most accurate, then the largest batch."""
    head = each.batch[0]
    urgency = (head.priority, head.deadline_ns, head.id)
    accuracy = each.offer.accuracy
    return urgency, -(accuracy or 0.0), each.offer.rank, -len(each.batch)
