"""How policies do on random fleets, which no constant was chosen for.

    python -m benchmarks.random_fleets [--kind cpu|gpu] [--devices N] [--clouds N [--price X]]
        [--jitter X] [--variants] [--load X] [--clients N] [--fleets N] [--first N] [--policy A,B]
        [--requests N] [--json FILE]

A fleet has two to six models that take 1 to 32 ms alone. On a `cpu` they gain at most a fifth from
batches, and half of them form none; on a `gpu` an item takes a twentieth to a half of that time in
a batch. Further devices are 0.3 to 3 times as fast, half of them just as fast. Each model has a
deadline of its own, or a range of them, from 1.5 to 24 times its time alone; loads are 0.5 to 2 of
the capacity, and arrivals have a CV of 1, 2 or 4.

With `--clouds` there are so many as well, of 0.1 to 1 times a device's time for a batch and 1 to 8
batches at once, behind 5 to 60 ms and 100 Mbps. A request there costs `--price`, by default 0.001.
Requests are of 1 or 100 KB.

With `--jitter` the latency of each device, and of each cloud, has a spread of its own: a twelfth of
X, half of X or X (`jitter` of a fleet file).

With `--variants` a model has up to three, each of which takes 0.15 to 0.8 times as long as the one
before and gives 0.2 to 3 % fewer right answers. Deadlines and capacity are those of the quickest.
The share of right answers is that of requests answered in time and rightly.

With `--clients` so many clients ask in place of that, each `THINK_MS` after its last answer or
refusal, and there are figures for the answers in time per second, too.

Of each policy but the first, the difference to the first (and with `--clients` the ratio) is given
with its 95 % confidence interval over the fleets, and by load and CV.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from benchmarks.figures import write_figures
from replay.experiment import Experiment, PolicyChoice
from replay.report.statistics import estimate
from replay.scenarios import load_scenario

LOADS = (0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0)
CVS = (1, 1, 1, 2, 4)
BATCHES = [1, 2, 4, 8, 16]
THINK_MS = 5.0


def described(kind: str, devices: int, number: int) -> dict[str, Any]:
    """The scenario of a number, as its file says it."""
    chance = random.Random(f"{kind} {devices} {number}")
    models, mix = [], []
    for index in range(chance.randint(2, 6)):
        alone_ms = 2 ** chance.uniform(0, 5)
        item_ms = alone_ms * (
            chance.uniform(0.8, 1) if kind == "cpu" else chance.uniform(0.05, 0.5)
        )
        alone = kind == "cpu" and chance.random() < 0.5
        least = chance.uniform(1.5, 6)
        most = least if chance.random() < 0.3 else least * chance.uniform(1.2, 4)
        models.append(
            {
                "name": f"model-{index}",
                "base_ms": alone_ms - item_ms,
                "per_item_ms": item_ms,
                "batches": [1] if alone else BATCHES,
            }
        )
        mix.append(
            {
                "model": f"model-{index}",
                "share": chance.choice((1, 1, 1, 2, 4)),
                "deadline_scale": {"uniform": [least, most]},
            }
        )
    scales = [1.0, *(chance.choice((1, chance.uniform(0.3, 3))) for _ in range(devices - 1))]
    targets = [{"id": f"{kind}:{at}", "time_scale": scale} for at, scale in enumerate(scales)]
    cv = chance.choice(CVS)
    process = {"process": "gamma", "cv": cv} if cv > 1 else {"process": "poisson"}
    return {
        "about": f"Random fleet {number}",
        "fleet": {"models": models, "boxes": [{"devices": targets}]},
        "workload": {"requests": 1, "load": chance.choice(LOADS), "mix": mix, **process},
    }


def with_variants(scenario: dict[str, Any]) -> dict[str, Any]:
    """The same scenario with up to three variants of each model, the most accurate first."""
    fleet = scenario["fleet"]
    chance = random.Random(scenario["about"])
    models = []
    for model in fleet["models"]:
        takes, accuracy = 1.0, 0.95
        for number in range(chance.choice((1, 2, 2, 3))):
            times = {key: model[key] * takes for key in ("base_ms", "per_item_ms")}
            models.append({**model, **times, "variant": f"v{number}", "accuracy": accuracy})
            takes *= chance.uniform(0.15, 0.8)
            accuracy -= chance.uniform(0.002, 0.03)
    return {**scenario, "fleet": {**fleet, "models": models}}


def with_clouds(scenario: dict[str, Any], clouds: int, price: float) -> dict[str, Any]:
    """The same scenario with clouds behind the box."""
    fleet, workload = scenario["fleet"], scenario["workload"]
    chance = random.Random(f"{scenario['about']} {clouds}")
    boxes = list(fleet["boxes"])
    for number in range(clouds):
        width = chance.choice((1, 2, 4, 8))
        pool = {"id": "pool", "time_scale": chance.choice((0.1, 0.3, 1)), "cost_per_request": price}
        boxes.append(
            {
                "name": f"cloud-{number}",
                "link": {"rtt_ms": chance.choice((5, 20, 60)), "mbps": 100},
                "devices": [{**pool, "width": width, "slots": max(2, width)}],
            }
        )
    mix = [{**each, "size_bytes": chance.choice((1_000, 100_000))} for each in workload["mix"]]
    return {
        **scenario,
        "fleet": {**fleet, "boxes": boxes},
        "workload": {**workload, "mix": mix},
    }


def with_jitter(scenario: dict[str, Any], most: float) -> dict[str, Any]:
    """The same scenario with devices whose latency spreads, each as far as it does."""
    fleet = scenario["fleet"]
    chance = random.Random(f"{scenario['about']} jitter")
    boxes = []
    for box in fleet["boxes"]:
        devices = []
        for device in box["devices"]:
            jitter = most * chance.choice((1 / 12, 1 / 2, 1))
            scale = device["time_scale"]
            models = [
                {
                    **model,
                    "base_ms": scale * model["base_ms"],
                    "per_item_ms": scale * model["per_item_ms"],
                    "jitter": jitter,
                }
                for model in fleet["models"]
            ]
            own = {key: value for key, value in device.items() if key != "time_scale"}
            devices.append({**own, "models": models})
        boxes.append({**box, "devices": devices})
    return {**scenario, "fleet": {**fleet, "boxes": boxes}}


def from_clients(scenario: dict[str, Any], clients: int) -> dict[str, Any]:
    """The same scenario with clients that wait for each answer before they ask again."""
    mix = scenario["workload"]["mix"]
    asked = {"process": "clients", "clients": clients, "think_ms": THINK_MS, "requests": 1}
    return {**scenario, "workload": {**asked, "mix": mix}}


class Played(NamedTuple):
    """What a policy did on a fleet.

    Attributes:
        on_time: How many percent of the requests were answered in time.
        right: How many in time and rightly.
        per_s: How many were answered in time per second.
    """

    on_time: float
    right: float
    per_s: float


def play(ready: Experiment, policy: PolicyChoice) -> Played:
    """Plays a fleet's requests to their end."""
    offers = [offer for target in ready.fleet.targets() for offer in target.offers]
    accuracy = {(offer.model, offer.variant): offer.accuracy or 1.0 for offer in offers}
    count = on_time = right = ended_ns = 0.0
    for ending in ready.endings(policy, 1):
        count += 1
        ended_ns = max(ended_ns, ending.at_ns)
        if ending.in_time and ending.run is not None:
            on_time += 1
            right += accuracy[ending.run.model, ending.run.variant]
    return Played(100 * on_time / count, 100 * right / count, on_time / ended_ns * 1e9)


def experiment(scenario: dict[str, Any], requests: int) -> Experiment:
    """The scenario, ready to be played."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "random.yaml"
        file.write_text(yaml.safe_dump(scenario))
        return load_scenario(file).experiment(requests)


def summary(differences: Sequence[float]) -> dict[str, float | None]:
    """The mean of some differences, and how far it is from the true one with 95 % confidence."""
    found = estimate(differences)
    assert found is not None
    return {
        "mean": found.mean,
        "within": found.half_width,
        "least": min(differences),
        "most": max(differences),
    }


def means(played: Mapping[str, Sequence[Played]], what: str) -> dict[str, float]:
    """The mean of one of the figures over all fleets, by policy."""
    return {name: statistics.fmean(getattr(p, what) for p in own) for name, own in played.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--clouds", type=int, default=0, help="behind the box")
    parser.add_argument("--price", type=float, default=0.001, help="of a request at a cloud")
    parser.add_argument("--jitter", type=float, help="the widest spread of a device's latency")
    parser.add_argument("--variants", action="store_true", help="models have several")
    parser.add_argument("--load", type=float, help="of all fleets, as a multiple of the capacity")
    parser.add_argument("--clients", type=int, help="a closed loop of so many")
    parser.add_argument("--fleets", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first fleet")
    parser.add_argument("--policy", default="goodput,edf", help="separated by commas")
    parser.add_argument("--requests", type=int, default=3_000, help="per fleet")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    policies = [PolicyChoice.parse(policy) for policy in args.policy.split(",")]
    played: dict[str, list[Played]] = defaultdict(list)
    conditions: dict[str, list[int]] = defaultdict(list)
    for index in range(args.fleets):
        scenario = described(args.kind, args.devices, args.first + index)
        if args.variants:
            scenario = with_variants(scenario)
        if args.clouds:
            scenario = with_clouds(scenario, args.clouds, args.price)
        if args.jitter:
            scenario = with_jitter(scenario, args.jitter)
        workload = scenario["workload"]
        if args.load:
            workload["load"] = args.load
        if args.clients:
            scenario = from_clients(scenario, args.clients)
        else:
            conditions[f"load {workload['load']}"].append(index)
            conditions[f"cv {workload.get('cv', 1)}"].append(index)
        ready = experiment(scenario, args.requests)
        for policy in policies:
            played[policy.label].append(play(ready, policy))
        found = {name: round(own[-1].on_time, 1) for name, own in played.items()}
        print(f"fleet {args.first + index}:", found, file=sys.stderr)
    first, *others = played
    figures: dict[str, Any] = {"on_time_percent": means(played, "on_time")}
    if args.variants:
        figures["right_percent"] = means(played, "right")
    if args.clients:
        figures["in_time_per_s"] = means(played, "per_s")
    for name in others:
        pairs = list(zip(played[name], played[first], strict=True))
        gains = [own.on_time - base.on_time for own, base in pairs]
        figures[f"{name} beyond {first}"] = {
            "all": summary(gains),
            **{key: summary([gains[i] for i in rows]) for key, rows in sorted(conditions.items())},
        }
        if args.clients:
            ratios = [own.per_s / base.per_s for own, base in pairs]
            figures[f"{name} per second by {first}"] = summary(ratios)
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
