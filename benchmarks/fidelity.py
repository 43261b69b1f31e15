"""How near the simulator is to a running box: the same requests to both, over many workloads.

    python -m benchmarks.fidelity --json FILE [--points N] [--seconds S] [--seed N]

A real agent runs three devices: OpenVINO on the first core, ONNX Runtime on the second, and an
emulated cloud behind an emulated link. They are profiled, and then watched while they serve a
workload that is none of the points; the simulator is told of the box only what the daemon was
(its profiles), and what its journal says of that time (how long batches really took, and what the
way to the box takes). Nothing is fitted to a point.

Each point is a load, a coefficient of variation of the gaps between requests, and a deadline as a
multiple of the fastest target's latency. Its requests are sent to the box (open loop) and played
in the simulator with the same policy, several times with other chance in the service times.
docs/fidelity.md says what came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from benchmarks.busy import make_busy
from benchmarks.spawned_agent import prefer, spawned_agent
from replay.caller import Caller, observed_caller
from replay.experiment import Experiment, PolicyChoice
from replay.fleet import Fleet, Truth
from replay.fleet_world import Link
from replay.live import LiveEnding, play_live
from replay.observed import observed_fleet
from replay.simulator import Arrival
from replay.sources import WorkloadSource
from replay.workloads import Fixed, Gamma, Mix, MixEntry, Stream, Workload

LOADS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
CVS = (1.0, 3.0)
SCALES = (3.0, 8.0)

REPEATS = 10
"""Simulations of a point, each with other service times."""

REST_S = 3.0
"""Between two workloads, so that what the daemon has learned is stale, as in a new simulation."""

LEARN_LOADS = (0.5, 1.0)
"""The loads of the workloads from which the truth is learned."""

LINK = {"rtt_ms": 16.0, "mbps": 100.0}
CLOUD = {
    "base_ms": 18.0,
    "per_item_ms": 14.0,
    "jitter": 0.05,
    "models": {"segment": {"base_ms": 10.0, "per_item_ms": 7.0, "jitter": 0.05}},
    "link": LINK,
}
MAX_BATCH = 4
MODELS = {"detect": (5000, 24, 24), "segment": (2500, 16, 12)}
"""Floats of input, products of matrices of a batch, and of each item."""

MS = 1e6


# -- the plan and the comparison


@dataclass(frozen=True, slots=True)
class Point:
    """A workload.

    Attributes:
        load: As a share of the fleet's capacity.
        cv: Of the gaps between requests.
        scale: The deadline, as a multiple of the latency of one request on the fastest target.
    """

    load: float
    cv: float
    scale: float


def plan(count: int | None, seed: int) -> list[Point]:
    """The points in an order by chance, so that a change of the machine is none of the load.

    Args:
        count: How many of them; None is all.
        seed: Of the order.
    """
    points = [Point(*values) for values in product(LOADS, CVS, SCALES)]
    random.Random(seed).shuffle(points)
    return points[:count]


@dataclass(frozen=True, slots=True)
class Heard:
    """How a request ended for its caller.

    Attributes:
        outcome: In the words of `Outcome`, or `none`.
        on_time: Whether there was a result within the deadline.
        latency_ns: From when it was due.
    """

    outcome: str
    on_time: bool
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a workload.

    Attributes:
        requests: How many there were.
        on_time_pct: Those with a result in time, in percent.
        p50_ms: The median latency of those.
        p99_ms: Their 99th percentile.
        outcomes_pct: How requests ended, in percent.
    """

    requests: int
    on_time_pct: float
    p50_ms: float
    p99_ms: float
    outcomes_pct: dict[str, float]


def summary(heard: Sequence[Heard]) -> Summary:
    """What came of some requests; at least one."""
    latencies = sorted(each.latency_ns for each in heard if each.on_time)
    count = len(heard)
    return Summary(
        count,
        100 * len(latencies) / count,
        _quantile(latencies, 0.5) / MS,
        _quantile(latencies, 0.99) / MS,
        {name: 100 * n / count for name, n in Counter(h.outcome for h in heard).most_common()},
    )


def _quantile(ordered: Sequence[int], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The simulator beside the box at one point.

    Attributes:
        point: The workload.
        live: What the box made of it.
        simulated: What the simulator did, over all repeats.
        chance_pct: The standard deviation of the simulated on-time share over the repeats: how
            far two runs are apart by chance alone.
        profile_only_pct: The on-time share of a simulation that knows the profiles alone.
        others_pct: How much of the machine other processes took meanwhile.
        late_ms: By how much the generator was late, 99th percentile.
    """

    point: Point
    live: Summary
    simulated: Summary
    chance_pct: float
    profile_only_pct: float
    others_pct: float
    late_ms: float

    @property
    def on_time_error_pct(self) -> float:
        """The simulated on-time share minus that of the box, in percentage points."""
        return self.simulated.on_time_pct - self.live.on_time_pct

    @property
    def p99_error_pct(self) -> float:
        """By how many percent the simulated 99th percentile is off."""
        return 100 * (self.simulated.p99_ms / self.live.p99_ms - 1) if self.live.p99_ms else 0.0


def verdict(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The figures over all points: means and maxima of absolute errors, and the bias."""
    on_time = [c.on_time_error_pct for c in comparisons]
    p99 = [abs(c.p99_error_pct) for c in comparisons]
    profile = [abs(c.profile_only_pct - c.live.on_time_pct) for c in comparisons]
    return {
        "points": len(comparisons),
        "on_time_mean_abs_pct": mean(map(abs, on_time)),
        "on_time_max_abs_pct": max(map(abs, on_time)),
        "on_time_bias_pct": mean(on_time),
        "p99_mean_abs_pct": mean(p99),
        "p99_max_abs_pct": max(p99),
        "chance_pct": mean(c.chance_pct for c in comparisons),
        "profile_only_on_time_mean_abs_pct": mean(profile),
    }


HEADER = (
    f"{'load':>5}{'cv':>4}{'scale':>6}{'n':>7} |{'live %':>8}{'sim %':>8}{'diff':>7}{'chance':>7}"
    f"{'profile':>8} |{'p99 ms':>8}{'sim':>8}{'diff %':>8} |{'others':>7}{'late ms':>8}"
)


def line(comparison: Comparison) -> str:
    """A row of the table under `HEADER`."""
    c, live, simulated = comparison, comparison.live, comparison.simulated
    return (
        f"{c.point.load:5.2f}{c.point.cv:4.0f}{c.point.scale:6.0f}{live.requests:7d} |"
        f"{live.on_time_pct:8.2f}{simulated.on_time_pct:8.2f}{c.on_time_error_pct:+7.2f}"
        f"{c.chance_pct:7.2f}{c.profile_only_pct:8.2f} |"
        f"{live.p99_ms:8.1f}{simulated.p99_ms:8.1f}{c.p99_error_pct:+8.1f} |"
        f"{c.others_pct:6.0f}%{c.late_ms:8.1f}"
    )


# -- the workloads


def experiment(point: Point, fleet: Fleet, seconds: float) -> Experiment:
    """A point on a fleet."""
    entries = [
        MixEntry(model, deadline_scale=Fixed(point.scale), size_bytes=Fixed(4.0 * values))
        for model, (values, *_) in MODELS.items()
    ]
    stream = Stream(Gamma(point.cv), Mix(entries), load=point.load)
    return Experiment("", WorkloadSource(Workload((stream,), seconds)), fleet, point.load)


@dataclass(frozen=True, slots=True)
class _Sent:
    """Requests that are given."""

    requests: tuple[Arrival, ...]

    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        return iter(self.requests)


def simulate(
    fleet: Fleet, policy: str, requests: Sequence[Arrival], caller: Caller, seed: int
) -> list[Heard]:
    """Plays requests in the simulator, as their caller hears of them."""
    sent = tuple(caller.send(requests))
    played = Experiment("", _Sent(sent), fleet)
    heard = []
    for ending in played.endings(PolicyChoice.parse(policy), seed):
        budget_ns = requests[ending.finish.request_id - 1].budget_ns
        latency_ns = caller.there_ns + ending.at_ns - ending.arrival.at_ns + caller.back_ns
        on_time = ending.in_time and latency_ns <= budget_ns
        heard.append(Heard(ending.finish.outcome.value, on_time, latency_ns))
    return heard


# -- the box


class Others:
    """What processes that are not of the box take of the machine."""

    def __init__(self) -> None:
        self._own_s, self._busy_s, self._all_s = self._now()

    def share_pct(self) -> float:
        """Since the last time, in percent of all processors."""
        own_s, busy_s, all_s = self._now()
        others = (busy_s - self._busy_s) - (own_s - self._own_s)
        share = 100 * others / (all_s - self._all_s)
        self._own_s, self._busy_s, self._all_s = own_s, busy_s, all_s
        return max(0.0, share)

    def _now(self) -> tuple[float, float, float]:
        import psutil

        times = psutil.cpu_times()
        whole = sum(times[:8])
        own = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                own += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return own, whole - times.idle - times.iowait, whole


class Box:
    """A running agent, and what is known of it.

    Args:
        url: Its native door.
        folder: Where its journal is.
        policy: What decides there.
        say: Where progress goes.
    """

    def __init__(self, url: str, folder: Path, policy: str) -> None:
        self.url = url
        self.policy = policy
        self.journal = folder / "state" / "journal"
        self.told = self._fleet(learned=False)
        self.fleet = self.told
        self.caller = Caller()

    def learn(self, seconds: float, seed: int) -> None:
        """Watches the box while it serves, so that simulations can be true to it."""
        endings: list[LiveEnding] = []
        for load in LEARN_LOADS:
            requests = self.requests(Point(load, 1.5, 5.0), seconds, seed)
            endings += self.play(requests)
        self.fleet = self._fleet(learned=True)
        self.caller = observed_caller(endings)

    def requests(self, point: Point, seconds: float, seed: int) -> list[Arrival]:
        return list(experiment(point, self.told, seconds).arrivals(seed))

    def play(self, requests: Sequence[Arrival]) -> list[LiveEnding]:
        """Sends requests, after a rest."""
        time.sleep(REST_S)
        endings: list[LiveEnding] = []
        with _unhindered():
            play_live(self.url, requests, endings.append)
        return endings

    def compare(self, point: Point, seconds: float, seed: int) -> Comparison:
        """Plays a point here and there."""
        requests = self.requests(point, seconds, seed)
        others = Others()
        endings = self.play(requests)
        others_pct = others.share_pct()
        runs = [
            simulate(self.fleet, self.policy, requests, self.caller, repeat)
            for repeat in range(REPEATS)
        ]
        shares = [summary(run).on_time_pct for run in runs]
        profile_only = simulate(self.told, self.policy, requests, Caller(), 0)
        lags = sorted(ending.lag_ns for ending in endings)
        return Comparison(
            point,
            summary([Heard(e.outcome or "none", e.on_time, e.latency_ns) for e in endings]),
            replace(summary([h for run in runs for h in run]), requests=len(requests)),
            pstdev(shares),
            summary(profile_only).on_time_pct,
            others_pct,
            _quantile(lags, 0.99) / MS,
        )

    def _fleet(self, learned: bool) -> Fleet:
        fleet = observed_fleet(self.journal, lambda _: None)
        link = Link(round(LINK["rtt_ms"] * MS), 8e3 / LINK["mbps"])
        devices = []
        for device in fleet.devices:
            truth = device.truth if learned else Truth()
            way = link if device.spec.remote else None
            devices.append(replace(device, truth=truth, link=way))
        return replace(fleet, devices=tuple(devices))


class _unhindered:  # noqa: N801
    """Lets this process, which must send in time, go before all others, where it may."""

    def __enter__(self) -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            print("no right to real-time priority: the generator may be late", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Starts the box, learns it, and goes through the points."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    devices = [
        {"id": "cpu:0", "cores": cores[:1], "runtimes": ["openvino"]},
        {"id": "cpu:1", "cores": cores[1:], "runtimes": ["onnxruntime"]},
        {"id": "npu:0", "runtimes": ["emulated"], "options": CLOUD},
    ]
    if arguments.niceness:
        prefer(os.getpid(), arguments.niceness)
    with tempfile.TemporaryDirectory(prefix="laxity-fidelity-") as name:
        folder = Path(name)
        for model, (values, base, per_item) in MODELS.items():
            make_busy(folder / "models", model, values, base, per_item, MAX_BATCH)
        settings = {
            "devices": devices,
            "policy": {"name": arguments.policy},
            "profile": {"max_batch": MAX_BATCH, "seconds": 4.0},
        }
        say("starting the box, measuring its devices")
        with spawned_agent(folder, folder / "models", arguments.niceness, **settings) as url:
            box = Box(url, folder, arguments.policy)
            say("watching it serve")
            box.learn(arguments.learn_seconds, arguments.seed)
            return go_through(box, arguments)


def go_through(box: Box, arguments: argparse.Namespace) -> dict[str, Any]:
    """All points, with a table as they are done."""
    began_s = time.time()
    comparisons = []
    points = plan(arguments.points, arguments.seed)
    say(HEADER)
    for number, point in enumerate(points):
        found = box.compare(point, arguments.seconds, arguments.seed + number)
        comparisons.append(found)
        say(f"{line(found)}   [{number + 1}/{len(points)}]")
    return {
        "policy": arguments.policy,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "took_s": time.time() - began_s,
        "load_average": os.getloadavg(),
        "caller": asdict(box.caller),
        "devices": list(described(box.fleet)),
        "verdict": verdict(comparisons),
        "points": [
            {
                **asdict(c),
                "on_time_error_pct": c.on_time_error_pct,
                "p99_error_pct": c.p99_error_pct,
            }
            for c in comparisons
        ],
    }


def described(fleet: Fleet) -> Iterator[dict[str, Any]]:
    """Medians of what was profiled and of what was observed, in milliseconds."""
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
                }


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Iterable[str] | None = None) -> None:
    """Measures, prints and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--points", type=int, help="only so many of the points")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each point")
    parser.add_argument("--learn-seconds", type=float, default=40.0, help="of each watched load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="goodput")
    parser.add_argument(
        "--niceness", type=int, default=0, help="of the box, beside others on the machine"
    )
    arguments = parser.parse_args(None if argv is None else list(argv))
    found = measure(arguments)
    for key, value in found["verdict"].items():
        say(f"{key:>36} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
