"""How near policies come to the optimum of small workloads.

    python -m benchmarks.optimum [--policy A,B] [--instances N] [--requests N] [--json FILE]

Each instance is a small random workload of two models on one or two devices of unlike speed, in
batches of up to four, with deadlines of 10 to 50 ms and a load between half and twice what the
devices do one by one. The optimum is that of a clairvoyant (`replay.bound.exact_bound`); where the
solver ran out of time it is only known that nothing is better, and the share is that of a bound.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import write_figures
from replay.bound import ExactBound, exact_bound
from replay.experiment import PolicyChoice
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetSpec

MS = 1_000_000
SIZES = (1, 2, 4)
LOADS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
BUDGETS_MS = ((10, 20, 40), (20, 30, 50), (15, 25))
MEAN_MS = 6
"""About how long a request takes alone."""


def instance(seed: int, requests: int) -> tuple[float, list[TargetSpec], list[Arrival]]:
    """A load, a fleet and a workload."""
    chance = random.Random(seed)
    fleet = [device("fast", chance.choice((2, 4, 8)), chance.choice((1, 2, 4)), 1)]
    if seed % 2:
        fleet.append(device("slow", chance.choice((4, 8)), chance.choice((2, 4)), 2))
    load = chance.choice(LOADS)
    budgets_ms = chance.choice(BUDGETS_MS)
    arrivals, at_ms = [], 0.0
    for _ in range(requests):
        at_ms += chance.expovariate(load * len(fleet) / MEAN_MS)
        kind = RequestClass(chance.choice("aab"))
        arrivals.append(Arrival(int(at_ms * MS), kind, chance.choice(budgets_ms) * MS))
    return load, fleet, arrivals


def device(name: str, base_ms: int, item_ms: int, b_ms: int) -> TargetSpec:
    """A device on which model `b` is quicker than model `a`."""
    curves = {"a": (base_ms, item_ms), "b": (max(1, base_ms // 2), b_ms)}
    offers = [
        Offer(model, "v", "runtime", {size: ((base + item * size) * MS,) for size in SIZES})
        for model, (base, item) in curves.items()
    ]
    return TargetSpec(name, tuple(offers))


def in_time(policy: str, fleet: Sequence[TargetSpec], arrivals: Sequence[Arrival]) -> int:
    """How many a policy finishes in time."""
    latency_ns = {
        (spec.id, offer.model): offer.latency_ns for spec in fleet for offer in spec.offers
    }

    def service_ns(run: Dispatch) -> int:
        return latency_ns[run.target_id, run.model][len(run.request_ids)][0]

    simulator = Simulator(PolicyChoice.parse(policy).make(), fleet, service_ns)
    return sum(ending.in_time for ending in simulator.run(arrivals))


def rows(
    policies: Sequence[str], instances: int, requests: int, time_limit_s: float
) -> Iterator[tuple[float, int, ExactBound, dict[str, int]]]:
    """Per instance: its load, its devices, the optimum, and what each policy finished."""
    for seed in range(instances):
        load, fleet, arrivals = instance(seed, requests)
        best = exact_bound(arrivals, fleet, time_limit_s=time_limit_s)
        finished = {policy: in_time(policy, fleet, arrivals) for policy in policies}
        yield load, len(fleet), best, finished


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="goodput,edf,window", help="which, with commas")
    parser.add_argument("--instances", type=int, default=30)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="of the solver, each")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    policies = args.policy.split(",")
    shares: dict[str, list[float]] = {policy: [] for policy in policies}
    exact = 0
    for load, devices, best, finished in rows(
        policies, args.instances, args.requests, args.time_limit_s
    ):
        exact += best.exact
        for policy, count in finished.items():
            shares[policy].append(count / best.value if best.value else 1.0)
        about = "optimum" if best.exact else "bound"
        print(f"load {load}, devices {devices}, {about} {best.value:g}:", finished, file=sys.stderr)
    figures = {
        "instances": args.instances,
        "solved_exactly": exact,
        "median": {policy: statistics.median(each) for policy, each in shares.items()},
        "mean": {policy: statistics.fmean(each) for policy, each in shares.items()},
        "least": {policy: min(each) for policy, each in shares.items()},
    }
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
