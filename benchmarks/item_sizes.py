"""The share in time with items of many sizes, as for a speech or text model.

    python -m benchmarks.item_sizes [--json FILE]

One simulated device runs `goodput` on items of 10 to 4,000 elements (log-uniform), with deadlines
of four times their own latency. `one_curve` has one latency curve for all sizes, and `sizes` has
one per size; both were profiled with items of one element. `known` has a profile of each size. In
`prepared` the first run of a shape takes six times as long, for up to 40 shapes. Figures are
percentages of the requests.
"""

from __future__ import annotations

import argparse
import random
from bisect import bisect_left
from collections.abc import Callable
from math import exp, log
from pathlib import Path

from benchmarks.figures import print_contenders, write_figures
from policies import make_policy
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.sizes import least_elements, step_of
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
SHORTEST, LONGEST = 10, 4_000
REQUESTS = 4_000
TIGHTNESS = 4
NOISE = 0.05
BATCHES = (1, 2, 4, 8)
SHAPES, PREPARING = 40, 6.0

Cost = Callable[[int], float]
COSTS: dict[str, Cost] = {
    "line": lambda n: 0.5 + 0.02 * n,
    "square": lambda n: 0.5 + 0.005 * n + 1e-5 * n * n,
    "same": lambda n: 5.0,
}
"""The milliseconds of an item alone, by its number of elements."""


def batch_ns(one_ms: float, count: int, rng: random.Random) -> int:
    """The time of a batch, in nanoseconds, of items that each take `one_ms` alone."""
    size = BATCHES[bisect_left(BATCHES, count)]
    return int(one_ms * MS * (0.4 + 0.6 * size) * rng.lognormvariate(0, NOISE))


def offer(model: str, length: int, cost: Cost, rng: random.Random, sized: bool) -> Offer:
    """The offer profiled with items of one length."""
    ladder = {n: tuple(batch_ns(cost(length), n, rng) for _ in range(30)) for n in BATCHES}
    return Offer(model, "v", "simulated", ladder, item_shapes=((length,),) if sized else ())


def workload(cost: Cost, load: float, known: bool, seed: int = 1) -> list[Arrival]:
    """Poisson arrivals; with `known`, each size step is a separate model."""
    rng = random.Random(seed)
    lengths = [int(exp(rng.uniform(log(SHORTEST), log(LONGEST)))) for _ in range(REQUESTS)]
    mean_ns = MS * sum(map(cost, lengths)) / REQUESTS
    arrivals, at_ns = [], 0.0
    for length in lengths:
        at_ns += rng.expovariate(load / mean_ns)
        kind = RequestClass(f"m{step_of(length)}" if known else "m", shapes=((length,),))
        arrivals.append(Arrival(int(at_ns), kind, int(TIGHTNESS * cost(length) * MS)))
    return arrivals


def in_time(cost: Cost, load: float, how: str, prepared: bool) -> float:
    """The share of requests in time, in percent."""
    rng = random.Random(2)
    steps = range(step_of(SHORTEST), step_of(LONGEST) + 1)
    if how == "known":
        offers = [offer(f"m{n}", least_elements(n), cost, rng, sized=False) for n in steps]
    else:
        offers = [offer("m", 1, cost, rng, sized=how == "sizes")]
    met: set[int] = set()

    def service_ns(run: Dispatch, kind: RequestClass) -> int:
        length = kind.shapes[0][0]
        slower = PREPARING if prepared and length not in met and len(met) < SHAPES else 1.0
        met.add(length)
        return int(batch_ns(cost(length), len(run.request_ids), rng) * slower)

    targets = [TargetSpec("cpu:0", tuple(offers))]
    simulator = Simulator(make_policy("goodput"), targets, service_ns)
    endings = list(simulator.run(workload(cost, load, how == "known")))
    return 100 * sum(ending.in_time for ending in endings) / len(endings)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    cases = {
        f"{name}, {load}{', prepared' if prepared else ''}": (cost, load, prepared)
        for name, cost in COSTS.items()
        for load, prepared in ((0.2, False), (0.2, True), (0.7, False), (1.2, False))
    }
    figures = {
        how: {case: in_time(*settings[:2], how, settings[2]) for case, settings in cases.items()}
        for how in ("one_curve", "sizes", "known")
    }
    print_contenders(figures, cases)
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
