"""What is recorded about a simulation while it runs."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping

from replay.results import Row, Sample
from replay.simulator import Ending
from scheduler.core.commands import Dispatch
from scheduler.core.events import Event, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec
from scheduler.core.targets import TargetState

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""The quantiles whose calibration is measured."""

SAMPLES = 600
"""The most points in a timeline; an even number."""

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
    """Samples the scheduler at up to `SAMPLES` moments, further apart the longer the run is.

    The moments are random, one in each step of time. Sampling when a batch ends would always find
    its target free, and evenly spaced moments would stay in phase with periodic arrivals.

    Attributes:
        samples: The samples taken.
    """

    def __init__(self) -> None:
        """Begins without samples."""
        self.samples: list[Sample] = []
        self._step_ns = FIRST_STEP_NS
        self._begun_ns = self._at_ns = 0
        self._chance = random.Random(0).random
        self._rest: tuple[int, int, Mapping[str, int | None]] | None = None

    def look(self, scheduler: Scheduler, now_ns: int) -> int:
        """Records the queued and running work for each sampling moment before now.

        Returns:
            The next sampling moment.
        """
        queued = sum(len(queue) for queue in scheduler.queues.values())
        busy = {
            target_id: len(target.runs) if target.up else None
            for target_id, target in scheduler.targets.items()
        }
        # Idle time counts only if a request comes after it: scripted events and old wake-ups may
        # be due long after the last request.
        if queued or any(busy.values()):
            self.note_rest()
            self._note(now_ns, queued, busy)
        else:
            self._rest = now_ns, queued, busy
        return self._at_ns

    def note_rest(self) -> None:
        """Records the idle time before now, since a request has arrived or ended."""
        if self._rest is not None:
            self._note(*self._rest)
            self._rest = None

    def _note(self, until_ns: int, queued: int, busy: Mapping[str, int | None]) -> None:
        while self._at_ns < until_ns:
            self.samples.append(Sample(self._at_ns, queued, busy))
            if len(self.samples) >= SAMPLES:
                pairs = zip(self.samples[::2], self.samples[1::2], strict=True)
                self.samples = [pair[self._chance() < 0.5] for pair in pairs]
                self._step_ns *= 2
            self._begun_ns += self._step_ns
            self._at_ns = self._begun_ns + int(self._chance() * self._step_ns)


class CalibrationTally:
    """How often batches took no longer than predicted, against how often was promised.

    It predicts and learns as the core does, but with curves of its own, so measuring does not
    change what the policy sees.
    """

    def __init__(
        self, targets: Iterable[TargetSpec], events: Iterable[tuple[int, Event]] = ()
    ) -> None:
        """Begins with the profiles, as a returning target does.

        Args:
            targets: The targets at the start.
            events: What happens to them, in order of time.
        """
        self._targets: dict[str, TargetState] = {}
        self._offers: dict[tuple[str, str, str], Offer] = {}
        for target in targets:
            self._begin(target)
        self._returns = deque(
            (at_ns, event.target) for at_ns, event in events if isinstance(event, TargetUp)
        )
        self._kept = dict.fromkeys(QUANTILES, 0)
        self._count = 0

    def _begin(self, target: TargetSpec) -> None:
        state = self._targets[target.id] = TargetState(target)
        state.add_offers(target.offers)
        self._offers.update(((target.id, o.model, o.variant), o) for o in target.offers)

    def add(self, run: Dispatch, kind: RequestClass, begun_ns: int, done_ns: int) -> None:
        """Records a batch of a class."""
        while self._returns and self._returns[0][0] <= begun_ns:
            self._begin(self._returns.popleft()[1])
        offer = self._offers[run.target_id, run.model, run.variant]
        curve = self._targets[run.target_id].curve(offer, kind)
        curve.forget_stale(begun_ns)
        size, took_ns = len(run.request_ids), done_ns - begun_ns
        self._count += 1
        for quantile in QUANTILES:
            self._kept[quantile] += took_ns <= curve.predict(size, quantile)
        curve.observe(size, took_ns, done_ns)

    def points(self) -> list[tuple[float, float, int]]:
        """Promised share, observed share, and the number of batches."""
        if not self._count:
            return []
        return [(q, kept / self._count, self._count) for q, kept in self._kept.items()]
