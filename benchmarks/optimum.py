"""How close policies come to the optimum in small workloads.

    python -m benchmarks.optimum [--policy A,B] [--instances N] [--requests N] [--json FILE]
    python -m benchmarks.optimum --slice SCENARIO,… [--seeds N,…] [--requests N] [--moves N] …

Each instance is a small random workload of two models on one or two devices of different speed, in
batches of up to four, with deadlines of 10 to 50 ms and a load between half and twice what the
devices can do without batching. The optimum is that of a clairvoyant (`replay.bound.exact_bound`).
Where the solver ran out of time, its value is only an upper bound, and the share is relative to
that.

With `--slice` the instances are the first requests of standard scenarios, with every service time
at its median. Their optimum is not known: it lies between the result of a clairvoyant search
(`benchmarks.clairvoyant`, which starts from the schedule of the first policy) and the bounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.clairvoyant import Annealing
from benchmarks.figures import write_figures
from replay.bound import ExactBound, exact_bound, fluid_bound, whole_bound
from replay.experiment import PolicyChoice
from replay.scenarios import FOLDER, load_scenario
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
SIZES = (1, 2, 4)
LOADS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
BUDGETS_MS = ((10, 20, 40), (20, 30, 50), (15, 25))
MEAN_MS = 6
"""The approximate time of a single request."""


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
    """A device on which model `b` is faster than model `a`."""
    curves = {"a": (base_ms, item_ms), "b": (max(1, base_ms // 2), b_ms)}
    offers = [
        Offer(model, "v", "runtime", {size: ((base + item * size) * MS,) for size in SIZES})
        for model, (base, item) in curves.items()
    ]
    return TargetSpec(name, tuple(offers))


def played(
    policy: str, fleet: Sequence[TargetSpec], arrivals: Sequence[Arrival]
) -> tuple[int, list[Dispatch]]:
    """The number of requests that a policy finishes in time, and its batches in starting order."""
    offers = {(spec.id, offer.model): offer for spec in fleet for offer in spec.offers}
    runs: list[Dispatch] = []

    def service_ns(run: Dispatch, _kind: RequestClass) -> int:
        offer = offers[run.target_id, run.model]
        return offer.latency_ns[offer.size_for(len(run.request_ids))][0]

    def on_run(run: Dispatch, _kind: RequestClass, _begun_ns: int, _done_ns: int) -> None:
        runs.append(run)

    simulator = Simulator(PolicyChoice.parse(policy).make(), fleet, service_ns, on_run=on_run)
    return sum(ending.in_time for ending in simulator.run(arrivals)), runs


def rows(
    policies: Sequence[str], instances: int, requests: int, time_limit_s: float
) -> Iterator[tuple[float, int, ExactBound, dict[str, int]]]:
    """Per instance: load, number of devices, optimum, and what each policy finished in time."""
    for seed in range(instances):
        load, fleet, arrivals = instance(seed, requests)
        best = exact_bound(arrivals, fleet, time_limit_s=time_limit_s)
        finished = {policy: played(policy, fleet, arrivals)[0] for policy in policies}
        yield load, len(fleet), best, finished


def certain(spec: TargetSpec) -> TargetSpec:
    """A target on which every batch takes its median time."""
    return replace(
        spec,
        offers=tuple(
            replace(
                offer,
                latency_ns={
                    size: (sorted(samples)[len(samples) // 2],)
                    for size, samples in offer.latency_ns.items()
                },
            )
            for offer in spec.offers
        ),
    )


def slice_of(
    scenario: str, seed: int, requests: int, policies: Sequence[str], moves: int
) -> dict[str, float]:
    """For the first requests of a scenario, the number in time by contender, and the bounds.

    Raises:
        ValueError: The scenario has remote devices, drift or scripted events.
    """
    experiment = load_scenario(FOLDER / f"{scenario}.yaml").experiment(requests)
    fleet = experiment.fleet
    if fleet.script or any(device.link or device.truth.drift for device in fleet.devices):
        raise ValueError(f"scenario {scenario!r} is not one of steady devices on one box")
    arrivals = list(experiment.arrivals(seed))
    specs = [certain(spec) for spec in fleet.targets()]
    figures: dict[str, float] = {}
    for policy in policies:
        figures[policy], runs = played(policy, specs, arrivals)
        if policy == policies[0]:
            search = Annealing(arrivals, specs, seed)
            for index, spec in enumerate(specs):
                for run in (run for run in runs if run.target_id == spec.id):
                    search.take(index, [request_id - 1 for request_id in run.request_ids])
    figures["clairvoyant"] = search.improve(moves)
    figures["whole"] = whole_bound(arrivals, specs, rounds=400).value
    figures["fluid"] = fluid_bound(arrivals, specs).value
    return figures


def measure_slices(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By scenario, the means over the seeds, as shares of all requests."""
    seeds = [int(seed) for seed in args.seeds.split(",")]
    means: dict[str, dict[str, float]] = {}
    for scenario in args.slice.split(","):
        found = []
        for seed in seeds:
            policies = args.policy.split(",")
            found.append(slice_of(scenario, seed, args.requests, policies, args.moves))
            print(f"{scenario}, seed {seed}:", found[-1], file=sys.stderr)
        means[scenario] = {
            name: statistics.fmean(figures[name] for figures in found) / args.requests
            for name in found[0]
        }
    return means


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="goodput,edf,window", help="separated by commas")
    parser.add_argument("--instances", type=int, default=30)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument(
        "--time-limit-s", type=float, default=30.0, help="of the solver, per instance"
    )
    parser.add_argument("--slice", help="take the first requests of these scenarios")
    parser.add_argument("--seeds", default="101,102,103", help="of the slices, separated by commas")
    parser.add_argument("--moves", type=int, default=300_000, help="of the search, per slice")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    if args.slice:
        write_figures(measure_slices(args), args.json)
        return
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
