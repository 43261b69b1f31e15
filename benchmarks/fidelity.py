"""How close the simulator is to a running box: the same requests to both, in many workloads.

    python -m benchmarks.fidelity --json FILE [--rounds N] [--seconds S] [--points N] [--seed N]

A real agent runs three devices: OpenVINO on the first core, ONNX Runtime on the second, and an
emulated cloud behind an emulated link. They are profiled, and then observed while they serve a
workload that is none of the points. The simulator gets only what the daemon had (its profiles), and
what its journal says of that observation (how long batches really took, and the transfer times to
the box). Nothing is fitted to a point.

Each point is a load, a coefficient of variation of the gaps between requests, and a deadline as a
multiple of the fastest target's latency. Its requests are sent to the box (open loop) and played in
the simulator with the same policy, several times with different random service times. All points
are played in several rounds, each in another order and with other requests, and a point's figures
cover all its rounds.

For the results see docs/fidelity.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from benchmarks.busy import make_busy
from benchmarks.fidelity_box import LINK, Box, pin, say
from benchmarks.fidelity_points import (
    HEADER,
    MODELS,
    MS,
    Comparison,
    Point,
    Round,
    line,
    plan,
    verdict,
)
from benchmarks.figures import write_figures
from benchmarks.spawned_agent import preferred, spawned_agent
from replay.fleet.model import Fleet

CLOUD = {
    "base_ms": 28.0,
    "per_item_ms": 22.0,
    "jitter": 0.05,
    "models": {"segment": {"base_ms": 16.0, "per_item_ms": 11.0, "jitter": 0.05}},
    "link": LINK,
}
MAX_BATCH = 4


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the box, learn its latencies, and go through the points."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    devices = [
        {"id": "cpu:0", "cores": cores[:1], "runtimes": ["openvino"]},
        {"id": "cpu:1", "cores": cores[1:], "runtimes": ["onnxruntime"]},
        {"id": "npu:0", "runtimes": ["emulated"], "options": CLOUD},
    ]
    with (
        preferred(arguments.niceness),
        tempfile.TemporaryDirectory(prefix="laxity-fidelity-") as name,
    ):
        folder = Path(name)
        for model, (values, base, per_item) in MODELS.items():
            make_busy(folder / "models", model, values, base, per_item, MAX_BATCH)
        settings: dict[str, Any] = {
            "devices": devices,
            "policy": {"name": arguments.policy},
            "profile": {"max_batch": MAX_BATCH, "seconds": 4.0},
        }
        say("starting the box, measuring its devices")
        with spawned_agent(folder, folder / "models", arguments.niceness, **settings) as url:
            box = Box(url, folder, arguments.policy)
            pin(box.pid, cores[0])
            pin(os.getpid(), cores[1])
            say("watching it serve")
            box.learn(arguments.learn_seconds, arguments.seed)
            return go_through(box, arguments)


def go_through(box: Box, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play all points, and print a table row as each is done."""
    began_s = time.time()
    say(HEADER)
    comparisons = compared(box, arguments)
    say("all rounds together")
    for each in comparisons:
        say(line(each))
    return {
        "policy": arguments.policy,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "seed": arguments.seed,
        "took_s": time.time() - began_s,
        "load_average": os.getloadavg(),
        "caller": asdict(box.caller),
        "devices": list(described(box.fleet(box.truths))),
        "verdict": verdict(comparisons),
        "points": [
            {**asdict(each), "errors": {name: asdict(e) for name, e in each.errors.items()}}
            for each in comparisons
        ],
    }


def compared(box: Box, arguments: argparse.Namespace) -> list[Comparison]:
    """Play all points in rounds, so that a device slow for a minute affects a single round."""
    played: dict[Point, list[Round]] = {}
    before = box.probe(arguments.seed)
    for number in range(1, arguments.rounds + 1):
        points = plan(arguments.points, arguments.seed, number)
        for place, point in enumerate(points, 1):
            seed = 1000 * arguments.seed + len(points) * number + place
            now = box.play(box.requests(point, arguments.seconds, seed))
            after = box.probe(seed)
            found = box.compare(now, (before, after))
            before = after
            played.setdefault(point, []).append(found)
            progress = f"[round {number}: {place}/{len(points)}]"
            say(f"{line(Comparison.of(point, [found]))}   {progress}")
    return [Comparison.of(point, played[point]) for point in sorted(played, key=astuple)]


def described(fleet: Fleet) -> Iterator[dict[str, Any]]:
    """Medians of the profiled and of the observed latencies, in milliseconds."""
    for device in fleet.devices:
        for offer in device.spec.offers:
            for size, samples in offer.latency_ns.items():
                true = device.truth.times.get((offer.model, offer.variant, size), samples)
                yield {
                    "target": device.spec.id,
                    "runtime": offer.runtime,
                    "model": offer.model,
                    "batch": size,
                    "profiled_p50_ms": sorted(samples)[len(samples) // 2] / MS,
                    "observed_p50_ms": sorted(true)[len(true) // 2] / MS,
                    "observed_p95_ms": sorted(true)[int(0.95 * len(true))] / MS,
                    "observed": len(true),
                    "submit_us": device.truth.submit_ns / 1e3,
                }


def main(argv: Iterable[str] | None = None) -> None:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--points", type=int, help="play only so many of the points")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of each point and round"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each point is played")
    parser.add_argument(
        "--learn-seconds", type=float, default=20.0, help="length of each learning load"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--niceness", type=int, default=0, help="niceness of the box's processes")
    arguments = parser.parse_args(None if argv is None else list(argv))
    found = measure(arguments)
    for key, value in found["verdict"].items():
        say(f"{key:>36} {value:8.2f}")
    if arguments.json:
        write_figures(found, arguments.json)


if __name__ == "__main__":
    main()
