"""`clockwork`: predictability first; the batch that must start soonest goes first.

Rule: every possible batch has a latest start: its earliest deadline less its latency. An open
target takes the batch whose latest start is the soonest and still ahead. Larger batches take
longer, so they must start sooner and are tried first; as time passes they become infeasible, one
size after the other. A request that can't start in time is dropped. Latencies are taken at a high
quantile, so that almost nothing that starts is late.

Inputs: deadlines, latencies per batch size. Wins where latency is steady and a broken promise costs
more than a refused request. Loses where latency is noisy (the high quantile refuses requests that
would have been in time), and under overload, since nearly lost requests always go first.

Source: A. Gujarati et al., "Serving DNNs like Clockwork: Performance Predictability from the
Bottom Up", OSDI 2020, section 5.3 (strategies per model and batch size).
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.parts.outlook import Outlook
from policies.parts.serving import candidates, serve
from scheduler.core.policy import Decision, Place, View
from scheduler.core.targets import TargetState


class Clockwork:
    """The batch with the soonest latest start first.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1.
    """

    def __init__(self, quantile: float = 0.99) -> None:
        """Takes its options from the configuration."""
        self.quantile = quantile
        self._outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        """Fills every open target with the batch that must start soonest."""
        return serve(self._outlook, view, self._must_start)

    def _must_start(self, target: TargetState) -> Place | None:
        best = min(
            candidates(self._outlook, target),
            key=lambda each: (each.priority, each.deadline_ns - each.latency_ns, -len(each.batch)),
            default=None,
        )
        if best is None:
            return None
        slack_ms = (best.deadline_ns - best.done_ns) / 1e6
        return best.place(f"batch of {len(best.batch)} must start within {slack_ms:.1f} ms")
