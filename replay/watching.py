"""What is noted of a simulation while it is played."""

from __future__ import annotations

from collections.abc import Iterable

from replay.results import Row, Sample
from replay.simulator import Ending
from scheduler.core.commands import Dispatch
from scheduler.core.latency import LatencyCurve
from scheduler.core.scheduler import Scheduler
from scheduler.core.targets import TargetSpec

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""The promises whose keeping is measured."""

SAMPLES = 600
"""So many points has a timeline at most."""

FIRST_STEP_NS = 5_000_000


def row_of(ending: Ending) -> Row:
    """An ending as a row of the results."""
    arrival, run = ending.arrival, ending.run
    return Row(
        arrival.at_ns,
        arrival.kind.model,
        run.variant if run is not None else arrival.kind.variant,
        run.target_id if run is not None else None,
        arrival.priority,
        arrival.weight,
        arrival.budget_ns,
        ending.finish.outcome.value,
        ending.at_ns,
        ending.in_time,
    )


class Timeline:
    """Looks at the scheduler now and then, less often the longer it takes.

    Attributes:
        samples: What it saw.
        next_ns: When it is to look again.
    """

    def __init__(self) -> None:
        """Has seen nothing."""
        self.samples: list[Sample] = []
        self.next_ns = 0
        self._step_ns = FIRST_STEP_NS

    def look(self, scheduler: Scheduler, now_ns: int) -> None:
        """Notes what is queued and running."""
        queued = sum(len(queue) for queue in scheduler.queues.values())
        busy = {target_id: len(target.runs) for target_id, target in scheduler.targets.items()}
        self.samples.append(Sample(now_ns, queued, busy))
        if len(self.samples) >= SAMPLES:
            self.samples = self.samples[::2]
            self._step_ns *= 2
        self.next_ns = now_ns + self._step_ns


class Calibration:
    """Whether batches take no longer than was predicted, as often as was promised.

    It predicts and learns as the core does, with curves of its own, so that looking changes
    nothing of what the policy sees.
    """

    def __init__(self, targets: Iterable[TargetSpec]) -> None:
        """Begins with the profiles."""
        self._curves = {
            (target.id, offer.model, offer.variant): LatencyCurve(offer)
            for target in targets
            for offer in target.offers
        }
        self._kept = dict.fromkeys(QUANTILES, 0)
        self._count = 0

    def add(self, run: Dispatch, begun_ns: int, done_ns: int) -> None:
        """Takes note of a batch."""
        curve = self._curves[run.target_id, run.model, run.variant]
        size, took_ns = len(run.request_ids), done_ns - begun_ns
        self._count += 1
        for quantile in QUANTILES:
            self._kept[quantile] += took_ns <= curve.predict(size, quantile)
        curve.observe(size, took_ns, done_ns)

    def points(self) -> list[tuple[float, float, int]]:
        """Promised share, observed share, and of how many batches."""
        if not self._count:
            return []
        return [(q, kept / self._count, self._count) for q, kept in self._kept.items()]
