"""Shortest job first: of the batches that can be in time, the one with least time per request."""

from collections.abc import Iterator

from policies.parts.outlook import Outlook
from policies.parts.serving import candidates, serve
from scheduler.core.policy import Decision, Place, View
from scheduler.core.targets import TargetState


class ShortestJobFirst:
    def __init__(self, quantile: float = 0.95) -> None:
        self.quantile = quantile
        self.outlook = Outlook(quantile)

    def decide(self, view: View) -> Iterator[Decision]:
        return serve(self.outlook, view, self.shortest)

    def shortest(self, target: TargetState) -> Place | None:
        jobs = list(candidates(self.outlook, target))
        if not jobs:
            return None
        job = min(jobs, key=lambda job: job.latency_ns / len(job.batch))
        return job.place("shortest job first")
