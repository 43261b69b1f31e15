"""How well latency is estimated: promised and observed quantiles, steady and after a step.

    python -m benchmarks.estimation [--json FILE]

A curve of four batch sizes observes batches of random sizes. Each batch is predicted while the
previous one is still running, as at a target that holds two, and compared with its true time.
`coverage` is the share of batches within the predicted quantile while nothing changes, over all
seeds and for the worst batch size. `step` is the same around a step after which every batch takes a
multiple of its time: the number of batches until drift was detected, and the coverage in the first
50 batches and in the next 200. Drift is sometimes detected although nothing has changed;
`false_alarms` counts that per 10,000 batches.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from math import exp, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.figures import write_figures
from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer

MS = 1_000_000
SIZES = (1, 2, 4, 8)
QUANTILES = (0.5, 0.9, 0.95, 0.99)
PROFILE = 32
SEEDS = 10
STEADY = 8_000
WARM, BLIND, AFTER = 600, 50, 200
STEPS = (0.5, 2.0)

Noise = Callable[[random.Random], float]


def lognormal(sigma: float) -> Noise:
    """Noise whose logarithm is normal."""
    return lambda rng: rng.lognormvariate(0, sigma)


def heavy(rng: random.Random) -> float:
    """A Pareto tail with barely finite variance, on 5 % noise."""
    return (0.8 + 0.2 * rng.paretovariate(2.1)) * rng.lognormvariate(0, 0.05)


def bimodal(rng: random.Random) -> float:
    """One batch in five takes 1.6 times as long."""
    return (1.6 if rng.random() < 0.2 else 1.0) * rng.lognormvariate(0, 0.05)


def wandering(memory: float) -> Noise:
    """Slow batches come in clusters: 15 % autocorrelated noise on 5 % independent noise."""
    level = 0.0

    def noise(rng: random.Random) -> float:
        nonlocal level
        level = memory * level + sqrt(1 - memory**2) * rng.gauss(0, 0.15)
        return exp(level) * rng.lognormvariate(0, 0.05)

    return noise


NOISES: dict[str, Noise] = {
    "lognormal 5 %": lognormal(0.05),
    "lognormal 20 %": lognormal(0.2),
    "lognormal 50 %": lognormal(0.5),
    "heavy tail": heavy,
    "bimodal": bimodal,
}
WANDERING = {f"wandering {memory}": wandering(memory) for memory in (0.9, 0.98, 0.995)}


class Rig:
    """One curve, and the true latency that it has to learn.

    Args:
        noise: Draws the factor on the time of each batch.
        seed: Seeds all randomness.
        item_ms: The time that each item adds to the base of 2 ms.
    """

    def __init__(self, noise: Noise, seed: int, item_ms: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self.noise = noise
        self.item_ms = item_ms
        self.level = 1.0
        profile = {size: tuple(self.sample_ns(size) for _ in range(PROFILE)) for size in SIZES}
        self.curve = LatencyCurve(Offer("m", "v", "emulated", profile))
        self.ahead = self._dispatch()

    def sample_ns(self, size: int) -> int:
        return int((2 + self.item_ms * size) * self.level * self.noise(self.rng) * MS)

    def _dispatch(self) -> tuple[int, list[int]]:
        size = self.rng.choice(SIZES)
        return size, [self.curve.predict(size, quantile) for quantile in QUANTILES]

    def batch(self) -> tuple[int, list[bool]]:
        """Finish a batch; return its size and which of its predictions held."""
        size, predicted = self.ahead
        self.ahead = self._dispatch()
        sample_ns = self.sample_ns(size)
        self.curve.observe(size, sample_ns, 0)
        return size, [sample_ns <= ns for ns in predicted]


def coverage(noise: Noise, item_ms: float = 1.0) -> dict[str, Any]:
    """The coverage while nothing changes."""
    kept = {size: [0] * len(QUANTILES) for size in SIZES}
    counts = dict.fromkeys(SIZES, 0)
    drifts = versions = 0
    for seed in range(SEEDS):
        rig = Rig(noise, seed, item_ms)
        for _ in range(STEADY):
            size, hits = rig.batch()
            counts[size] += 1
            kept[size] = [a + b for a, b in zip(kept[size], hits, strict=True)]
        drifts += rig.curve.drifts
        versions += rig.curve.version
    total = SEEDS * STEADY
    figures: dict[str, Any] = {}
    for i, quantile in enumerate(QUANTILES):
        shares = [kept[size][i] / counts[size] for size in SIZES]
        figures[f"{quantile}"] = sum(kept[size][i] for size in SIZES) / total
        figures[f"{quantile} worst size"] = max(shares, key=lambda s: abs(s - quantile))
    figures["false_alarms"] = drifts / total * 10_000
    figures["changes_per_batch"] = versions / total
    return figures


def step(noise: Noise, factor: float) -> dict[str, Any]:
    """The coverage after a step of the true latency."""
    figures: dict[str, Any] = {}
    seen: list[int] = []
    first, after = [0] * len(QUANTILES), [0] * len(QUANTILES)
    for seed in range(4 * SEEDS):
        rig = Rig(noise, seed)
        for _ in range(WARM):
            rig.batch()
        rig.level = factor
        drifts = rig.curve.drifts
        for i in range(BLIND + AFTER):
            hits = rig.batch()[1]
            sums = first if i < BLIND else after
            sums[:] = [a + b for a, b in zip(sums, hits, strict=True)]
            if rig.curve.drifts > drifts and len(seen) == seed:
                seen.append(i + 1)
        seen += [BLIND + AFTER] * (seed + 1 - len(seen))
    for i, quantile in enumerate(QUANTILES):
        figures[f"{quantile} first {BLIND}"] = first[i] / (4 * SEEDS * BLIND)
        figures[f"{quantile} next {AFTER}"] = after[i] / (4 * SEEDS * AFTER)
    figures["seen_after"] = sorted(seen)[len(seen) // 2]
    figures["seen_after_worst"] = max(seen)
    return figures


def observe_us() -> float:
    """The cost of learning from one batch and then reading both ladders, in microseconds."""
    rig = Rig(lognormal(0.1), 0)
    sizes = [rig.rng.choice(SIZES) for _ in range(20_000)]
    samples = [rig.sample_ns(size) for size in sizes]
    started = perf_counter()
    for size, sample_ns in zip(sizes, samples, strict=True):
        rig.curve.observe(size, sample_ns, 0)
        rig.curve.ladder(0.5)
        rig.curve.ladder(0.95)
    return (perf_counter() - started) / len(sizes) * 1e6


def measure() -> dict[str, Any]:
    """Measure all figures."""
    steady = {**NOISES, **WANDERING}
    return {
        "coverage": {name: coverage(noise) for name, noise in steady.items()},
        "coverage, flat in batch": {name: coverage(n, 0.0) for name, n in NOISES.items()},
        "step": {
            f"{name}, {factor:g}x": step(noise, factor)
            for name, noise in NOISES.items()
            for factor in STEPS
        },
        "observe_us": observe_us(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    results = measure()
    for part in ("coverage", "coverage, flat in batch", "step"):
        for name, figures in results[part].items():
            line = "  ".join(f"{key}: {value:.4g}" for key, value in figures.items())
            print(f"{part}, {name}: {line}", file=sys.stderr)
    print(f"observe_us {results['observe_us']:.2f}", file=sys.stderr)
    write_figures(results, args.json)


if __name__ == "__main__":
    main()
