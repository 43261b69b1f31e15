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
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import psutil

from benchmarks.busy import make_busy
from benchmarks.spawned_agent import prefer, spawned_agent
from replay.caller import Caller, observed_caller
from replay.experiment import Experiment, PolicyChoice
from replay.fleet import Device, Fleet, Truth
from replay.fleet_world import Link
from replay.journal import read_journal, targets
from replay.live import LiveEnding, play_live
from replay.observed import Observation
from replay.simulator import Arrival, Simulator
from replay.sources import WorkloadSource
from replay.workloads import Fixed, Mix, MixEntry, Stream, Uniform, Workload
from replay.workloads.processes import Gamma
from scheduler import Client

LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
CVS = (1.0, 3.0)
SCALES = (3.0, 8.0)

SPREAD = 0.25
"""By up to so much of it deadlines differ from a point's scale. Where all are alike, and a batch
takes just as long as there is time, the smallest difference of a prediction decides about all."""

REPEATS = 4
"""Simulations of a point, each with other service times."""

CALM_PCT = 10.0
"""A point during which other processes took more of the machine than this is played again."""

ATTEMPTS = 3
"""So often a point is played at most; the calmest time counts."""

WAIT_S = 6.0
"""So long a calm moment is waited for."""

REST_S = 3.0
"""Between two workloads, so that what the daemon has learned is stale, as in a new simulation."""

LEARN_LOADS = (0.6, 0.9, 1.2)
"""The loads of the workloads from which the truth is learned."""

PROBE_S = 6.0

LINK = {"rtt_ms": 16.0, "mbps": 100.0}
CLOUD = {
    "base_ms": 28.0,
    "per_item_ms": 22.0,
    "jitter": 0.05,
    "models": {"segment": {"base_ms": 16.0, "per_item_ms": 11.0, "jitter": 0.05}},
    "link": LINK,
}
MAX_BATCH = 4
MODELS = {"detect": (5000, 40, 40), "segment": (2500, 24, 20)}
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


PROBE = Point(0.9, 1.0, 5.0)
"""The workload before and after each point, which tells how fast the devices are just then."""


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
        own_times_pct: The on-time share of simulations whose batches take what they took at this
            very point: what is off then is the simulator's logic, and not its knowledge.
        profile_only_pct: The on-time share of a simulation that knows the profiles alone.
        paces: By target, how many times as long as learned its batches took in the probes before
            and after the point; the simulator is told.
        own_paces: The same at the point; the simulator isn't told.
        others_pct: As in `Played`.
        late_ms: By how much the generator was late, 99th percentile.
    """

    point: Point
    live: Summary
    simulated: Summary
    chance_pct: float
    own_times_pct: float
    profile_only_pct: float
    paces: dict[str, float]
    own_paces: dict[str, float]
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
    own = [abs(c.own_times_pct - c.live.on_time_pct) for c in comparisons]
    profile = [abs(c.profile_only_pct - c.live.on_time_pct) for c in comparisons]
    return {
        "points": len(comparisons),
        "on_time_mean_abs_pct": mean(map(abs, on_time)),
        "on_time_max_abs_pct": max(map(abs, on_time)),
        "on_time_bias_pct": mean(on_time),
        "p99_mean_abs_pct": mean(p99),
        "p99_max_abs_pct": max(p99),
        "chance_pct": mean(c.chance_pct for c in comparisons),
        "own_times_on_time_mean_abs_pct": mean(own),
        "own_times_on_time_max_abs_pct": max(own),
        "profile_only_on_time_mean_abs_pct": mean(profile),
    }


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """By how much y grows with x, by least squares; 0 where it shrinks."""
    x_mean, y_mean = mean(xs), mean(ys)
    product = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return max(0.0, product / sum((x - x_mean) ** 2 for x in xs))


HEADER = (
    f"{'load':>5}{'cv':>4}{'scale':>6}{'n':>7} |{'live %':>8}{'sim %':>8}{'diff':>7}{'chance':>7}"
    f"{'own':>8}{'profile':>8} |{'p99 ms':>8}{'sim':>8}{'diff %':>8} |"
    f"{'pace told, was':>18}{'others':>8}{'late':>6}"
)


def line(comparison: Comparison) -> str:
    """A row of the table under `HEADER`."""
    c, live, simulated = comparison, comparison.live, comparison.simulated
    told, was = mean(c.paces.values()), mean(c.own_paces.values())
    return (
        f"{c.point.load:5.2f}{c.point.cv:4.0f}{c.point.scale:6.0f}{live.requests:7d} |"
        f"{live.on_time_pct:8.2f}{simulated.on_time_pct:8.2f}{c.on_time_error_pct:+7.2f}"
        f"{c.chance_pct:7.2f}{c.own_times_pct:8.2f}{c.profile_only_pct:8.2f} |"
        f"{live.p99_ms:8.1f}{simulated.p99_ms:8.1f}{c.p99_error_pct:+8.1f} |"
        f"{told:9.3f}{was:9.3f}{c.others_pct:7.1f}%{c.late_ms:6.1f}"
    )


# -- the workloads


def experiment(point: Point, fleet: Fleet, seconds: float) -> Experiment:
    """A point on a fleet."""
    deadline = Uniform((1 - SPREAD) * point.scale, (1 + SPREAD) * point.scale)
    entries = [
        MixEntry(model, deadline_scale=deadline, size_bytes=Fixed(4.0 * values))
        for model, (values, *_) in MODELS.items()
    ]
    stream = Stream(Gamma(point.cv), Mix(entries), load=point.load)
    return Experiment("", WorkloadSource(Workload((stream,), seconds)), fleet, point.load)


def simulate(
    fleet: Fleet,
    policy: str,
    requests: Sequence[Arrival],
    caller: Caller,
    seed: int,
    first: Sequence[Arrival] = (),
) -> list[Heard]:
    """Plays requests in the simulator, as their caller hears of them.

    Args:
        fleet: Told and true.
        policy: What decides.
        requests: What is played.
        caller: The way to the box.
        seed: Of the service times.
        first: What is played before, and a rest; what is learned of it stays.
    """
    if first:
        start_ns = first[-1].at_ns + max(r.budget_ns for r in first) + int(REST_S * 1e9)
        later = [replace(r, at_ns=r.at_ns + start_ns) for r in requests]
        return simulate(fleet, policy, [*first, *later], caller, seed)[len(first) :]
    simulator = Simulator(
        PolicyChoice.parse(policy).make(),
        fleet.targets(),
        fleet.service_time(seed),
        world=fleet.world(),
        at_once=True,
    )
    heard = [Heard("none", False, 0)] * len(requests)
    for ending in simulator.run(caller.send(requests)):
        number = ending.finish.request_id - 1
        latency_ns = ending.at_ns + caller.back_ns - requests[number].at_ns
        on_time = ending.in_time and latency_ns <= requests[number].budget_ns
        heard[number] = Heard(ending.finish.outcome.value, on_time, latency_ns)
    return heard


# -- the box


class Others:
    """What processes that are not of the box take of the machine, from now on."""

    def __init__(self) -> None:
        self._last = self._now()

    def share_pct(self) -> float:
        """Since the last time, in percent of all processors."""
        last, self._last = self._last, self._now()
        own_s, busy_s, all_s = (now - then for now, then in zip(self._last, last, strict=True))
        return max(0.0, 100 * (busy_s - own_s) / all_s)

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        whole_s = sum(times[:8])  # Those of guests are counted with the user's.
        own_s = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                own_s += _cpu_s(process)
        return own_s, whole_s - times.idle - times.iowait, whole_s


@dataclass(frozen=True, slots=True)
class Played:
    """What a workload was, and what the box made of it.

    Attributes:
        requests: What was sent.
        endings: How that ended.
        from_ns: When it began, on the monotonic clock.
        until_ns: When all had ended.
        others_pct: How much of the machine processes that are not of the box took meanwhile.
    """

    requests: list[Arrival]
    endings: list[LiveEnding]
    from_ns: int
    until_ns: int
    others_pct: float


class Box:
    """A running agent, and what is known of it.

    Args:
        url: Its native door.
        folder: Where its journal is.
        policy: What decides there.

    Attributes:
        told: What its scheduler was told: a fleet with the profiles for truth.
        truths: What is true of each target, once that was learned.
        caller: The way to it.
    """

    def __init__(self, url: str, folder: Path, policy: str) -> None:
        self.url = url
        self.policy = policy
        self.journal = folder / "state" / "journal"
        link = Link(round(LINK["rtt_ms"] * MS), 8e3 / LINK["mbps"])
        time.sleep(REST_S)  # The journal is written a little later.
        specs = targets(self.journal, lambda _: None)
        devices = [Device(spec, link if spec.remote else None) for spec in specs]
        self.told = Fleet("box", tuple(devices))
        self.truths = {spec.id: Truth() for spec in specs}
        self.caller = Caller()
        with Client(url) as client:
            self.pid = int(client.status()["pid"])

    def learn(self, seconds: float, seed: int) -> None:
        """Watches the box while it serves, so that simulations can be true to it.

        The scheduler shares a core with the first device and the generator with the second: what
        a request takes of their time is missing to what runs there.
        """
        watched = {"cpu:0": psutil.Process(self.pid), "cpu:1": psutil.Process()}
        taken: dict[str, list[float]] = {name: [] for name in watched}
        all_played = []
        for load in LEARN_LOADS:
            requests = self.requests(Point(load, 1.5, 5.0), seconds, seed)
            before = {name: _cpu_s(process) for name, process in watched.items()}
            all_played.append(self.play(requests))
            for name, process in watched.items():
                taken[name].append(_cpu_s(process) - before[name])
        counts = [float(len(played.requests)) for played in all_played]
        # What is there without requests is part of every batch's time.
        shared = {name: round(slope(counts, cpu_s) * 1e9) for name, cpu_s in taken.items()}
        seen = self.observation(all_played)
        self.truths = {
            device.spec.id: seen.truth(device.spec, shared.get(device.spec.id, 0))
            for device in self.told.devices
        }
        endings = (ending for played in all_played for ending in played.endings)
        self.caller = observed_caller(endings, shared["cpu:0"])

    def probe(self, seed: int) -> Played:
        """A short workload, to see how fast the devices are just then."""
        return self.play(self.requests(PROBE, PROBE_S, seed))

    def requests(self, point: Point, seconds: float, seed: int) -> list[Arrival]:
        """The requests of a point."""
        return list(experiment(point, self.told, seconds).arrivals(seed))

    def play(self, requests: list[Arrival]) -> Played:
        """Sends requests, after a rest."""
        self.calm()
        endings: list[LiveEnding] = []
        others = Others()
        from_ns = time.monotonic_ns()
        with unhindered():
            play_live(self.url, requests, endings.append)
        return Played(requests, endings, from_ns, time.monotonic_ns(), others.share_pct())

    def calm(self) -> None:
        """Rests, and waits for a moment in which others leave the machine alone, but not long."""
        until_s = time.monotonic() + WAIT_S
        others = Others()
        time.sleep(REST_S)
        while others.share_pct() > CALM_PCT and time.monotonic() < until_s:
            time.sleep(1)

    def observation(self, all_played: Sequence[Played]) -> Observation:
        """What the journal says of some workloads."""
        steps = [
            (at_ns, step)
            for at_ns, step in read_journal(self.journal, lambda _: None)
            if any(played.from_ns <= at_ns <= played.until_ns for played in all_played)
        ]
        return Observation(steps, self.told.targets())

    def fleet(self, truths: Mapping[str, Truth]) -> Fleet:
        """What the scheduler was told, with something else for truth."""
        devices = [replace(device, truth=truths[device.spec.id]) for device in self.told.devices]
        return replace(self.told, devices=tuple(devices))

    def compare(self, point: Point, played: Played, around: Sequence[Played]) -> Comparison:
        """Simulates what was played, and puts the two side by side.

        Args:
            point: What it was.
            played: What the box made of it.
            around: The probes before it and after it.
        """
        near = self.observation(around)
        paces = {name: near.pace(name, truth) for name, truth in self.truths.items()}
        truths = {name: replace(t, bias=paces[name]) for name, t in self.truths.items()}
        own = self.observation([played])
        own_truths = {
            device.spec.id: own.truth(device.spec, self.truths[device.spec.id].request_ns)
            for device in self.told.devices
        }
        first = around[0].requests
        runs = self._simulations(truths, played.requests, first)
        own_runs = self._simulations(own_truths, played.requests, first)
        profile_only = simulate(self.told, self.policy, played.requests, Caller(), 0)
        lags = sorted(ending.lag_ns for ending in played.endings)
        whole = summary([heard for run in runs for heard in run])
        return Comparison(
            point,
            summary([Heard(e.outcome or "none", e.on_time, e.latency_ns) for e in played.endings]),
            replace(whole, requests=len(played.requests)),
            pstdev([summary(run).on_time_pct for run in runs]),
            mean(summary(run).on_time_pct for run in own_runs),
            summary(profile_only).on_time_pct,
            paces,
            {t.id: own.pace(t.id, self.truths[t.id]) for t in self.told.targets()},
            played.others_pct,
            _quantile(lags, 0.99) / MS,
        )

    def _simulations(
        self, truths: Mapping[str, Truth], requests: Sequence[Arrival], first: Sequence[Arrival]
    ) -> list[list[Heard]]:
        fleet = self.fleet(truths)
        return [
            simulate(fleet, self.policy, requests, self.caller, seed, first)
            for seed in range(REPEATS)
        ]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def unhindered() -> Iterator[None]:
    """Lets this process, which must send in time, go before all others, where it may."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        say("no right to real-time priority: the generator may be late")
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pin(pid: int, core: int) -> None:
    """Keeps all threads of a process on one core."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(task), [core])


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
            pin(box.pid, cores[0])
            pin(os.getpid(), cores[1])
            say("watching it serve")
            box.learn(arguments.learn_seconds, arguments.seed)
            return go_through(box, arguments)


def go_through(box: Box, arguments: argparse.Namespace) -> dict[str, Any]:
    """All points, with a table as they are done."""
    began_s = time.time()
    say(HEADER)
    comparisons = calmest(box, arguments, began_s + 60 * arguments.minutes)
    return {
        "policy": arguments.policy,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "took_s": time.time() - began_s,
        "load_average": os.getloadavg(),
        "caller": asdict(box.caller),
        "devices": list(described(box.fleet(box.truths))),
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


def calmest(box: Box, arguments: argparse.Namespace, until_s: float) -> list[Comparison]:
    """Each point as it was when others took least of the machine, in order of the points."""
    found: dict[Point, Comparison] = {}
    points = plan(arguments.points, arguments.seed)
    before = box.probe(arguments.seed)
    for attempt in range(ATTEMPTS):
        for number, point in enumerate(points):
            known = found.get(point)
            if known is not None and (known.others_pct <= CALM_PCT or time.time() > until_s):
                continue
            played = box.play(box.requests(point, arguments.seconds, arguments.seed + number))
            after = box.probe(arguments.seed + number)
            compared = box.compare(point, played, (before, after))
            before = after
            if known is None or compared.others_pct < known.others_pct:
                found[point] = compared
            say(f"{line(compared)}   [{attempt + 1}: {number + 1}/{len(points)}]")
    return [found[point] for point in sorted(found, key=astuple)]


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
                    "request_us": device.truth.request_ns / 1e3,
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
    parser.add_argument("--minutes", type=float, default=20.0, help="then nothing is repeated")
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
