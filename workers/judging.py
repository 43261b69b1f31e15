"""Judge a loaded variant: whether its answers are right, and how long batches take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workers.agreement import disagreement
from workers.batches import ItemRunner
from workers.model import Model, Tolerance
from workers.padding_trial import PaddingTrial, padded_items
from workers.profiling import Effort, LatencySamples, measure_ladder
from workers.runtimes.base import Session, one_line
from workers.sampling import sample_items
from workers.tensors import Item

Answers = list[Item]

SAMPLES = 4
"""Enough that a batch is not one item repeated, few enough to hold large inputs in memory."""

_WARM_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measurements of a session.

    Attributes:
        latency_ns: As in `Offer`.
        limited: Why larger batches are not used, or None.
        partial: True when it lost at batch size 1 and was not measured further.
        energy_uj: Batch size to the energy that the device drew per batch, in microjoules.
    """

    latency_ns: dict[int, tuple[int, ...]]
    limited: str | None
    partial: bool
    energy_uj: dict[int, int]


class Judge:
    """Judges all sessions of one variant with the same items."""

    def __init__(
        self,
        model: Model,
        tolerance: Tolerance,
        effort: Effort,
        joules: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Judge by a tolerance, with the given effort; `joules` reads the device's energy meter."""
        self._joules = joules
        self._model = model
        self._tolerance = tolerance
        self._effort = effort
        self._items: list[Item] = []
        self._padding: PaddingTrial | None = None
        self._timed: tuple[Answers | None, list[int]] = None, []

    def draw(self) -> list[Item]:
        """The items, drawn at the first call; the process may die of those of a huge shape.

        Raises:
            MemoryError: There is no room for them.
        """
        self._items = self._items or sample_items(self._model, SAMPLES)
        return self._items

    def answers(self, session: Session) -> Answers:
        """A session's answers to the sampled items, each run alone.

        Raises:
            Exception: Whatever the session raises.
        """
        runner = self._runner(session)
        answers, took_ns = Answers(), list[int]()
        for item in self.draw():
            began_ns = time.perf_counter_ns()
            [answer] = runner.run_batch([item])
            took_ns.append(time.perf_counter_ns() - began_ns)
            # Copied, because they are later compared with the rows of batches.
            answers.append({name: np.array(array) for name, array in answer.items()})
        self._timed = answers, took_ns
        return answers

    def unpadded(self) -> list[Item]:
        """An item whose answer `expect` wants, of a model with padded inputs; else none."""
        trial = self._padding_trial()
        return [] if trial is None else [trial.short]

    def expect(self, answers: Answers) -> None:
        """Takes another processor's answers to `unpadded`."""
        if (trial := self._padding_trial()) is not None:
            [trial.expected] = answers

    def padding_fault(self, session: Session) -> str | None:
        """How padding its inputs changes a session's answer beyond the tolerance, or None.

        Raises:
            Exception: Whatever the session raises.
        """
        trial = self._padding_trial()
        if trial is None:
            return None
        runner = self._runner(session)
        return trial.fault(lambda item: runner.run_batch([item])[0])

    def _padding_trial(self) -> PaddingTrial | None:
        """The trial of a model with padded inputs, made at the first call."""
        if self._model.pad and self._padding is None:
            self._padding = PaddingTrial(self._model, self._tolerance, self.draw()[0])
        return self._padding

    def fault(self, answers: Answers, reference: Answers) -> str | None:
        """How answers differ from the reference's beyond the tolerance, or None."""
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
        has_lost: Callable[[LatencySamples], bool],
    ) -> Verdict:
        """Measure growing batches, as long as each item's answer is the same as alone.

        Args:
            session: The session to measure.
            answers: Its answers to the items, each run alone.
            max_batch: The largest batch to try.
            tell: Called with each batch size before it is tried.
            has_lost: Tells from the latency at batch size 1 whether to stop there.

        Raises:
            Exception: Whatever the session raises for a single item.
        """
        runner = self._runner(session)
        climb = _Climb(_EnergyPerBatch(self._joules), tell, has_lost)
        timed, took_ns = self._timed
        counts = timed is answers and self._joules() is None  # else energy is to be measured
        ladder = measure_ladder(
            lambda batch: climb.run(lambda: runner.run_batch(self._batch(batch))),
            max_batch,
            self._effort,
            accept=lambda batch, measured: climb.accept(
                batch, measured, lambda: self._batch_fault(runner, batch, answers)
            ),
            alone_ns=took_ns if counts else (),
        )
        climb.energy.end()
        limited = _limit(climb.fault, ladder)
        return Verdict(ladder, limited, climb.lost, climb.energy.microjoules)

    def warm_up(self, session: Session, batches: Sequence[int]) -> None:
        """Run each batch size once at each length, so that requests meet no warm-up.

        No further one is begun after a second.

        Raises:
            Exception: Whatever the session raises.
        """
        runner = self._runner(session)
        began_ns = time.monotonic_ns()
        shorter = list(padded_items(self.draw()[0], self._model))
        for batch in sorted(batches):
            for items in (self._batch(batch), *([item] * batch for item in shorter)):
                runner.run_batch(items)
                if time.monotonic_ns() - began_ns > _WARM_NS:
                    return

    def _batch(self, size: int) -> list[Item]:
        items = self.draw()
        return [items[i % SAMPLES] for i in range(size)]

    def _runner(self, session: Session) -> ItemRunner:
        return ItemRunner(session, self._model.signature.batched)

    def _batch_fault(self, runner: ItemRunner, batch: int, alone: Answers) -> str | None:
        try:
            rows = runner.run_batch(self._batch(batch))
        except Exception as error:  # for example too large for the device; smaller ones may work
            return f"a batch of {batch} fails: {one_line(error)}"
        for index, row in enumerate(rows):
            reason = disagreement(row, alone[index % SAMPLES], self._tolerance)
            if reason is not None:
                return f"item {index} of a batch of {batch} differs when run alone: {reason}"
        return None


class _Climb:
    """Goes up the batch sizes until a batch is wrong or the runtime has lost.

    Attributes:
        energy: The energy drawn at each batch size.
        fault: What was wrong with the last batch, or None.
        lost: Whether the runtime lost at batch size 1.
    """

    def __init__(
        self,
        energy: _EnergyPerBatch,
        tell: Callable[[int], None],
        has_lost: Callable[[LatencySamples], bool],
    ) -> None:
        self.energy = energy
        self.fault: str | None = None
        self.lost = False
        self._tell = tell
        self._has_lost = has_lost

    def accept(self, batch: int, measured: LatencySamples, fault: Callable[[], str | None]) -> bool:
        if batch == 2 and self._has_lost(measured):
            self.lost = True
            return False
        self._tell(batch)
        self.energy.end()
        self.fault = fault() if batch > 1 else None
        self.energy.begin(batch)
        return self.fault is None

    def run(self, work: Callable[[], object]) -> None:
        work()
        self.energy.runs += 1


class _EnergyPerBatch:
    """Divides the energy that a device draws at a batch size by the number of runs.

    It is all the energy drawn in that time, including what the device draws when idle.
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
            # A counter that was reset, or is too coarse, gives no usable value.
            if microjoules > 0:
                self.microjoules[self._batch] = microjoules
        self._began = None


def batch_limit(session: Session, model: Model, device_limit: int) -> int:
    """The largest batch to try with a session."""
    if not model.signature.batched:
        return 1
    return min(session.max_batch, model.max_batch, device_limit)


def _limit(fault: str | None, ladder: LatencySamples) -> str | None:
    if fault is None:
        return None
    largest = max(ladder)
    size = "one item at a time" if largest == 1 else f"in batches of at most {largest}"
    return f"served {size}: {fault}"
