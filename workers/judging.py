"""Judge a loaded variant: are its answers right, and how long do batches take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workers.agreement import disagreement
from workers.batches import Item, ItemRunner
from workers.model import Model, Tolerance
from workers.profiling import Effort, Ladder, measure_ladder
from workers.runtimes.base import Session, one_line
from workers.sampling import sample_items

Answers = list[Item]

SAMPLES = 4
"""Enough for a batch not to be one item many times over, few enough to hold big inputs."""

_WARM_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How long a session takes.

    Attributes:
        latency_ns: As in `Offer`.
        limited: Why larger batches are not used, or None.
        partial: True when batch size 1 was enough to see that it lost.
        energy_uj: Batch size to what the device drew in a batch's time, in microjoules.
    """

    latency_ns: dict[int, tuple[int, ...]]
    limited: str | None
    partial: bool
    energy_uj: dict[int, int]


class Judge:
    """Judges sessions of one variant with the same items."""

    def __init__(
        self,
        model: Model,
        tolerance: Tolerance,
        effort: Effort | None,
        joules: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Judge by a tolerance, with as much effort as is given; `joules` meters the device."""
        self._joules = joules
        self._model = model
        self._tolerance = tolerance
        self._effort = effort
        self.items: list[Item] = sample_items(model, SAMPLES)

    def answers(self, session: Session) -> Answers:
        """What a session answers to the sampled items, each alone.

        Raises:
            Exception: Whatever the session raises.
        """
        runner = self._runner(session)
        # Copied, because the rows of a later batch are compared with them.
        return [
            {name: np.array(array) for name, array in runner.run_batch([item])[0].items()}
            for item in self.items
        ]

    def fault(self, answers: Answers, reference: Answers) -> str | None:
        """How far answers are off from the reference's, or None."""
        for found, expected in zip(answers, reference, strict=True):
            reason = disagreement(found, expected, self._tolerance)
            if reason is not None:
                return reason
        return None

    def measure(
        self,
        session: Session,
        answers: Answers,
        max_batch: int,
        *,
        tell: Callable[[int], None],
        has_lost: Callable[[Ladder], bool],
    ) -> Verdict:
        """Measure growing batches, as long as each item's answer stays what it is alone.

        Args:
            session: What to measure.
            answers: Its answers to the items alone.
            max_batch: The largest batch to try.
            tell: Hears of each batch size before it is tried.
            has_lost: Whether to stop after batch size 1, given its latency.

        Raises:
            Exception: Whatever the session raises for a single item.
        """
        runner = self._runner(session)
        climb = _Climb(_EnergyPerBatch(self._joules), tell, has_lost)
        ladder = measure_ladder(
            lambda batch: climb.run(lambda: runner.run_batch(self._batch(batch))),
            max_batch,
            effort=self._effort,
            accept=lambda batch, measured: climb.accept(
                batch, measured, lambda: self._batch_fault(runner, batch, answers)
            ),
        )
        climb.energy.end()
        limited = _limit(climb.fault, ladder)
        return Verdict(ladder, limited, climb.lost, climb.energy.microjoules)

    def warm_up(self, session: Session, batches: Sequence[int]) -> None:
        """Run each batch size once, for a second at most, so that no request has to wait for it.

        Raises:
            Exception: Whatever the session raises.
        """
        runner = self._runner(session)
        began_ns = time.monotonic_ns()
        for batch in sorted(batches):
            runner.run_batch(self._batch(batch))
            if time.monotonic_ns() - began_ns > _WARM_NS:
                return

    def _batch(self, size: int) -> list[Item]:
        return [self.items[i % SAMPLES] for i in range(size)]

    def _runner(self, session: Session) -> ItemRunner:
        return ItemRunner(session, self._model.signature.batched)

    def _batch_fault(self, runner: ItemRunner, batch: int, alone: Answers) -> str | None:
        try:
            rows = runner.run_batch(self._batch(batch))
        except Exception as error:  # too large for the device, say; smaller ones may serve
            return f"a batch of {batch} fails: {one_line(error)}"
        for index, row in enumerate(rows):
            reason = disagreement(row, alone[index % SAMPLES], self._tolerance)
            if reason is not None:
                return f"item {index} of a batch of {batch} differs from it alone: {reason}"
        return None


class _Climb:
    """Goes from batch size to batch size, until a batch is wrong or the race is lost.

    Attributes:
        energy: What is drawn on the way.
        fault: What was wrong with the last batch, or None.
        lost: Whether batch size 1 was enough to see that it lost.
    """

    def __init__(
        self,
        energy: _EnergyPerBatch,
        tell: Callable[[int], None],
        has_lost: Callable[[Ladder], bool],
    ) -> None:
        self.energy = energy
        self.fault: str | None = None
        self.lost = False
        self._tell = tell
        self._has_lost = has_lost

    def accept(self, batch: int, measured: Ladder, fault: Callable[[], str | None]) -> bool:
        if batch == 2 and self._has_lost(measured):
            self.lost = True
            return False
        self._tell(batch)
        self.energy.begin(batch)
        self.fault = fault() if batch > 1 else None
        return self.fault is None

    def run(self, work: Callable[[], object]) -> None:
        work()
        self.energy.runs += 1


class _EnergyPerBatch:
    """Shares out what a device draws while a batch size is measured among its runs.

    That is what the device draws in that time, its idle share included.
    """

    def __init__(self, joules: Callable[[], float | None]) -> None:
        self.microjoules: dict[int, int] = {}
        self.runs = 0
        self._joules = joules
        self._batch = 0
        self._began: float | None = None

    def begin(self, batch: int) -> None:
        self.end()
        self._batch, self._began, self.runs = batch, self._joules(), 0

    def end(self) -> None:
        drawn = self._joules() if self._began is not None else None
        if drawn is not None and self._began is not None and self.runs:
            microjoules = round((drawn - self._began) / self.runs * 1e6)
            # A counter that was reset, or is too coarse for so little, has told nothing.
            if microjoules > 0:
                self.microjoules[self._batch] = microjoules
        self._began = None


def batch_limit(session: Session, model: Model, device_limit: int) -> int:
    """The largest batch to try with a session."""
    if not model.signature.batched:
        return 1
    return min(session.max_batch, model.max_batch, device_limit)


def _limit(fault: str | None, ladder: Ladder) -> str | None:
    if fault is None:
        return None
    largest = max(ladder)
    size = "one item at a time" if largest == 1 else f"in batches of at most {largest}"
    return f"served {size}: {fault}"
