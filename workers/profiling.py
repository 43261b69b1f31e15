"""Measure how long a device takes for batches of a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

RunBatch = Callable[[int], object]
ClockNs = Callable[[], int]
LatencySamples = Mapping[int, tuple[int, ...]]
"""Batch size to ascending, equally likely latencies in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time to spend on a profile, and when to stop.

    Attributes:
        budget_ns: Time limit for the repeats at one batch size beyond `min_repeats`, and likewise
            for the warm-up before them.
        total_ns: Time after which no larger batch is tried.
        longest_ns: A larger batch that would probably take longer than this is not tried.
        min_repeats: The fewest repeats at a batch size, however long they take.
        max_repeats: The most repeats at a batch size, however short they are.
        max_warm_ups: The most runs to wait for a session to become steady.
        points: The most samples kept for a batch size.
        min_gain: The share by which a doubled batch must raise items per second.
        flat_steps: The number of doublings in a row without that gain that ends the ladder.
        slow_ns: A batch that takes longer is warmed up by one run, and is not measured if the next
            run is without that gain as well; that ends the ladder.
    """

    budget_ns: int = 350_000_000
    total_ns: int = 3_000_000_000
    longest_ns: int = 1_000_000_000
    min_repeats: int = 3
    max_repeats: int = 60
    max_warm_ups: int = 30
    points: int = 32
    min_gain: float = 0.03
    flat_steps: int = 2
    slow_ns: int = 250_000_000


def batch_ladder(max_batch: int) -> Iterator[int]:
    """Yield the batch sizes to measure: powers of two, and the largest allowed."""
    size = 1
    while size < max_batch:
        yield size
        size *= 2
    yield max_batch


def measure_ladder(
    run_batch: RunBatch,
    max_batch: int,
    effort: Effort,
    *,
    clock_ns: ClockNs = time.perf_counter_ns,
    accept: Callable[[int, LatencySamples], bool] = lambda batch, measured: True,
    alone_ns: Sequence[int] = (),
) -> dict[int, tuple[int, ...]]:
    """Measure growing batches until larger ones no longer pay.

    Args:
        run_batch: Runs one batch of the given size; an exception ends the measurement.
        max_batch: The largest batch to try.
        effort: How much time to spend.
        clock_ns: The clock, in nanoseconds.
        accept: Called before each batch size with the results so far; False ends the ladder, except
            that size 1 is always measured.
        alone_ns: What single items took just before; the first of them was a warm-up. Of a slow
            model they are not repeated.

    Returns:
        By batch size, at most `effort.points` ascending, equally likely latencies in nanoseconds.
    """
    measured: dict[int, tuple[int, ...]] = {}
    typical: dict[int, float] = {}
    best_rate, flat = 0.0, 0
    began_ns = clock_ns()
    for batch in batch_ladder(max_batch):
        if measured and clock_ns() - began_ns >= effort.total_ns:
            break
        if measured and _expected_ns(batch, typical) > effort.longest_ns:
            break
        if not accept(batch, measured) and batch > 1:
            break
        useless_ns = batch / (best_rate * (1 + effort.min_gain)) if measured else inf
        if batch == 1 and len(alone_ns) > effort.min_repeats and min(alone_ns) > effort.slow_ns:
            samples = list(alone_ns[1:])
        else:
            samples = _measure(run_batch, batch, effort, clock_ns, useless_ns)
        if not samples:
            break
        measured[batch] = thin(samples, effort.points)
        typical[batch] = median(samples)
        rate = batch / typical[batch]
        flat = 0 if rate >= best_rate * (1 + effort.min_gain) else flat + 1
        best_rate = max(best_rate, rate)
        if flat >= effort.flat_steps:
            break
    return measured


def thin(samples: list[int], points: int) -> tuple[int, ...]:
    """Reduce samples to at most `points` evenly spaced quantiles, ascending."""
    ordered = sorted(samples)
    if len(ordered) <= points:
        return tuple(ordered)
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * points)] for i in range(points))


def _expected_ns(batch: int, typical: Mapping[int, float]) -> float:
    """How long a larger batch would take at least: in line with the last two sizes."""
    *earlier, last = typical
    if not earlier:
        return typical[last]
    per_item_ns = (typical[last] - typical[earlier[-1]]) / (last - earlier[-1])
    return typical[last] + per_item_ns * (batch - last)


def _measure(
    run_batch: RunBatch, batch: int, effort: Effort, clock_ns: ClockNs, useless_ns: float
) -> list[int]:
    """The repeats at one batch size; empty if it is slow and no faster than a useless one."""
    warmed_ns = _warm_up(run_batch, batch, effort, clock_ns)
    samples: list[int] = []
    began_ns = clock_ns()
    while len(samples) < effort.max_repeats:
        samples.append(_time(run_batch, batch, clock_ns))
        if min(warmed_ns, samples[0]) > max(useless_ns, effort.slow_ns):
            return []
        enough = len(samples) >= effort.min_repeats
        if enough and clock_ns() - began_ns >= effort.budget_ns:
            break
    return samples


def _warm_up(run_batch: RunBatch, batch: int, effort: Effort, clock_ns: ClockNs) -> int:
    """Run until the best of the last three runs is no longer 5 % faster than all earlier ones.

    On a machine that is busy with other work the times may never settle; then the budget ends the
    warm-up.

    Returns:
        How long the fastest run took.
    """
    times: list[int] = []
    began_ns = clock_ns()
    while len(times) < effort.max_warm_ups:
        times.append(_time(run_batch, batch, clock_ns))
        if times[-1] > effort.slow_ns or clock_ns() - began_ns > effort.budget_ns:
            break
        earlier, latest = times[:-3], times[-3:]
        if earlier and min(latest) >= 0.95 * min(earlier):
            break
    return min(times)


def _time(run_batch: RunBatch, batch: int, clock_ns: ClockNs) -> int:
    began_ns = clock_ns()
    run_batch(batch)
    return clock_ns() - began_ns
