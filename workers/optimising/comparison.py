"""Compare a variant's answers and speed with those of its source."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.agreement import disagreement, tolerance_for
from workers.batches import ItemRunner
from workers.model import Model, Variant
from workers.profiling import Effort, measure_ladder
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec, ModelLoadError, Runtime
from workers.tensors import Item

Tell = Callable[[str], None]

CPU = DeviceSpec("cpu:0", "cpu")
"""Variants are compared on the CPU, which every box has, on all its cores."""

_REFERENCE = "onnxruntime"
_TOLD_EVERY = 16
_CHECKED = 8
"""The number of items on which each runtime's answers are checked against the reference's."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The items with which variants are compared.

    Attributes:
        items: Tensors by name, without a batch dimension; at least one.
        labels: The right answer to each, as the index of the largest value of the first output;
            None where unknown.
    """

    items: Sequence[Item]
    labels: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How a runtime performs with a variant on this machine.

    Attributes:
        runtime: Its name.
        p50_ms: The median of a single item; None where it does not run.
        fault: Why it does not run, or how its answers differ from ONNX Runtime's on this file; None
            if neither.
    """

    runtime: str
    p50_ms: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class Losses:
    """What a variant's answers lose compared with those of another one.

    Attributes:
        agreement: The share of items with the same largest value in every output.
        deviation: The mean difference of a value, as a share of the largest magnitude in its
            tensor.
        accuracy: The share of right answers, or None without labels.
        accuracy_before: The other variant's share on the same items.
    """

    agreement: float
    deviation: float
    accuracy: float | None
    accuracy_before: float | None

    @property
    def drop(self) -> float:
        """The drop in accuracy where labels exist, or else in agreement."""
        if self.accuracy is None or self.accuracy_before is None:
            return 1 - self.agreement
        return self.accuracy_before - self.accuracy


def answers(model: Model, variant: Variant, samples: Samples, tell: Tell) -> list[Item]:
    """The answers of ONNX Runtime, the reference, to each item.

    Raises:
        ModelLoadError: It cannot load the variant.
        RunError: It cannot run it.
    """
    with _loaded(RUNTIMES[_REFERENCE](), model, variant) as run:
        found = []
        for index, item in enumerate(samples.items):
            if index % _TOLD_EVERY == 0:
                tell(f"{variant.name}: {index} of {len(samples.items)} items")
            found.append(run(item))
        return found


def losses(before: Sequence[Item], after: Sequence[Item], samples: Samples) -> Losses:
    """Compare answers, item by item."""
    same = [
        all(_same_peak(one[name], other[name]) for name in one)
        for one, other in zip(before, after, strict=True)
    ]
    deviations = [
        _deviation(one[name], other[name])
        for one, other in zip(before, after, strict=True)
        for name in one
    ]
    return Losses(
        float(np.mean(same)),
        float(np.mean(deviations)),
        _accuracy(after, samples.labels),
        _accuracy(before, samples.labels),
    )


def speeds(
    model: Model, variant: Variant, samples: Samples, expected: Sequence[Item], tell: Tell
) -> Iterator[Speed]:
    """Measure a variant with each installed runtime for CPUs.

    Args:
        model: The variant's model.
        variant: The variant to load.
        samples: The items to run.
        expected: The reference's answers.
        tell: Called with progress messages.
    """
    tolerance = tolerance_for(model, variant)
    for name, make in RUNTIMES.items():
        runtime = make()
        if name == "emulated" or "cpu" not in runtime.kinds or runtime.missing() is not None:
            continue
        tell(f"{variant.name}: {name}")
        try:
            with _loaded(runtime, model, variant) as run:
                checked = zip(samples.items[:_CHECKED], expected, strict=False)
                faults = [disagreement(run(item), want, tolerance) for item, want in checked]
                yield Speed(name, _p50_ms(run, samples.items[0]), next(filter(None, faults), None))
        except ModelLoadError as error:
            yield Speed(name, None, str(error))


def _p50_ms(run: Callable[[Item], Item], item: Item) -> float:
    return median(measure_ladder(lambda _: run(item), 1, Effort())[1]) / 1e6


@contextmanager
def _loaded(runtime: Runtime, model: Model, variant: Variant) -> Iterator[Callable[[Item], Item]]:
    """Keep a variant loaded for a block; yield a function that runs one item."""
    with tempfile.TemporaryDirectory(prefix="laxity-optimize-") as folder:
        session = runtime.load(model, variant, CPU, Path(folder))
        runner = ItemRunner(session, model.signature.batched)

        def run(item: Item) -> Item:
            return {name: np.array(row) for name, row in runner.run_batch([item])[0].items()}

        try:
            yield run
        finally:
            session.close()


def _same_peak(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if one.shape != other.shape:
        return False
    return one.size == 0 or bool(np.argmax(one) == np.argmax(other))


def _deviation(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    if one.shape != other.shape:
        return 1.0
    before, after = one.astype(np.float64), other.astype(np.float64)
    largest = float(np.abs(before).max(initial=0.0))
    return float(np.abs(before - after).mean()) / largest if largest else 0.0


def _accuracy(found: Sequence[Item], labels: npt.NDArray[np.int64] | None) -> float | None:
    if labels is None:
        return None
    places = [int(np.argmax(next(iter(item.values())))) for item in found]
    return float(np.mean(np.array(places) == labels))
