"""The pure half of the fidelity benchmark: points, simulations and comparison."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, pstdev

from replay.caller import Caller
from replay.experiment import Experiment, PolicyChoice
from replay.fleet.model import Fleet
from replay.simulator import Arrival, Simulator
from replay.sources import WorkloadSource
from replay.workloads import Fixed, Mix, MixEntry, Stream, Uniform, Workload
from replay.workloads.processes import Gamma

LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
CVS = (1.0, 3.0)
SCALES = (3.0, 8.0)

SPREAD = 0.25
"""Deadlines differ from a point's scale by up to this share. If all deadlines were equal and just
as long as a batch, the smallest difference in a prediction would decide about every request."""

REST_S = 3.0
"""The rest between two workloads, in seconds, so that what the daemon has learned is stale, as in a
new simulation."""

MODELS = {"detect": (5000, 40, 40), "segment": (2500, 24, 20)}
"""By model: floats of input, matrix products per batch, and matrix products per item."""

MS = 1e6


# -- the plan and the comparison


@dataclass(frozen=True, slots=True)
class Point:
    """A workload.

    Attributes:
        load: The load, as a share of the fleet's capacity.
        cv: The coefficient of variation of the gaps between requests.
        scale: The deadline, as a multiple of the latency of one request on the fastest target.
    """

    load: float
    cv: float
    scale: float


PROBE = Point(0.9, 1.0, 5.0)
"""The workload before and after each point, which shows how fast the devices are at that time."""


def plan(count: int | None, seed: int, number: int) -> list[Point]:
    """The points of a round in random order, so that load and machine state do not correlate.

    Args:
        count: The number of points, the same ones in each round; None for all.
        seed: Seeds the selection and the order.
        number: The number of the round.
    """
    points = [Point(*values) for values in product(LOADS, CVS, SCALES)]
    random.Random(seed).shuffle(points)
    points = points[:count]
    random.Random(seed + number).shuffle(points)
    return points


@dataclass(frozen=True, slots=True)
class Heard:
    """How a request ended for its caller.

    Attributes:
        outcome: A value of `Outcome`, or `none`.
        on_time: Whether there was a result within the deadline.
        latency_ns: The time since it was due to be sent.
    """

    outcome: str
    on_time: bool
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a workload.

    Attributes:
        requests: The number of requests.
        on_time_pct: The share with a result in time, in percent.
        p50_ms: The median latency of those in time.
        p99_ms: The 99th percentile of their latency.
        outcomes_pct: How requests ended, in percent.
    """

    requests: int
    on_time_pct: float
    p50_ms: float
    p99_ms: float
    outcomes_pct: dict[str, float]


def summary(heard: Sequence[Heard]) -> Summary:
    """Summarise the results of at least one request."""
    latencies = sorted(each.latency_ns for each in heard if each.on_time)
    count = len(heard)
    return Summary(
        count,
        100 * len(latencies) / count,
        quantile_of(latencies, 0.5) / MS,
        quantile_of(latencies, 0.99) / MS,
        {name: 100 * n / count for name, n in Counter(h.outcome for h in heard).most_common()},
    )


def quantile_of(ordered: Sequence[int], quantile: float) -> float:
    """A quantile of ascending values; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """A point played once, and simulated.

    Attributes:
        live: How each request ended at the box.
        replayed: The same in the simulator, with devices that are at each moment as fast as in the
            journal.
        predicted: The same in the simulator, by repeat, with devices as fast as in the probes
            before and after.
        profile_only: The same in the simulator with only the profiles.
        paces: By target, the factor on the learned time of its batches in the probes; the
            prediction uses it.
        own_paces: The same in the round itself; the prediction does not use it.
        others_pct: As in `Played`.
        late_ms: The 99th percentile of the generator's lateness.
    """

    live: Sequence[Heard]
    replayed: Sequence[Heard]
    predicted: Sequence[Sequence[Heard]]
    profile_only: Sequence[Heard]
    paces: Mapping[str, float]
    own_paces: Mapping[str, float]
    others_pct: float
    late_ms: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The simulator compared with the box at one point, over all rounds.

    Attributes:
        point: The workload.
        live: The box's results.
        replayed: The simulator's results with the devices' actual speeds; the error is in its
            logic.
        predicted: Its results with the speeds from the probes, over all repeats; the additional
            error comes from what nobody could know.
        profile_only: Its results with only the profiles.
        rounds_pct: By round, the error of the replayed on-time share.
        chance_pct: The standard deviation of the predicted on-time share over the repeats, which
            shows how far two runs differ by chance alone.
        paces: The mean of those in `Round`.
        own_paces: The mean of those in `Round`.
        others_pct: The mean of those in `Round`.
        late_ms: The worst of those in `Round`.
    """

    point: Point
    live: Summary
    replayed: Summary
    predicted: Summary
    profile_only: Summary
    rounds_pct: list[float]
    chance_pct: float
    paces: dict[str, float]
    own_paces: dict[str, float]
    others_pct: float
    late_ms: float

    @classmethod
    def of(cls, point: Point, rounds: Sequence[Round]) -> Comparison:
        """Combine all rounds of a point; there must be at least one."""
        live = summary(pooled([each.live for each in rounds]))
        repeats = [pooled(runs) for runs in zip(*(r.predicted for r in rounds), strict=True)]
        return cls(
            point,
            live,
            summary(pooled([each.replayed for each in rounds])),
            replace(summary(pooled(repeats)), requests=live.requests),
            summary(pooled([each.profile_only for each in rounds])),
            [off(summary(each.live), summary(each.replayed)).on_time_pct for each in rounds],
            pstdev([summary(run).on_time_pct for run in repeats]),
            {t: mean(each.paces[t] for each in rounds) for t in rounds[0].paces},
            {t: mean(each.own_paces[t] for each in rounds) for t in rounds[0].own_paces},
            mean(each.others_pct for each in rounds),
            max(each.late_ms for each in rounds),
        )

    @property
    def errors(self) -> dict[str, Error]:
        """The error of each simulation."""
        simulations = {
            "replayed": self.replayed,
            "predicted": self.predicted,
            "profile_only": self.profile_only,
        }
        return {name: off(self.live, each) for name, each in simulations.items()}


@dataclass(frozen=True, slots=True)
class Error:
    """The error of a simulation.

    Attributes:
        on_time_pct: Its on-time share minus that of the box, in percentage points.
        p99_pct: By how many percent its 99th-percentile latency of requests in time exceeds the
            box's.
    """

    on_time_pct: float
    p99_pct: float


def off(live: Summary, simulated: Summary) -> Error:
    """The error of a simulation."""
    p99_pct = 100 * (simulated.p99_ms / live.p99_ms - 1) if live.p99_ms else 0.0
    return Error(simulated.on_time_pct - live.on_time_pct, p99_pct)


def pooled(runs: Iterable[Iterable[Heard]]) -> list[Heard]:
    """The endings of several runs, as if of one run."""
    return [heard for run in runs for heard in run]


def verdict(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The figures over all points: means and maxima of absolute errors, and the bias."""
    found: dict[str, float] = {"points": len(comparisons)}
    for name in comparisons[0].errors:
        errors = [comparison.errors[name] for comparison in comparisons]
        on_time = [error.on_time_pct for error in errors]
        p99 = [abs(error.p99_pct) for error in errors]
        found[f"{name}_on_time_mean_abs_pct"] = mean(map(abs, on_time))
        found[f"{name}_on_time_max_abs_pct"] = max(map(abs, on_time))
        found[f"{name}_on_time_bias_pct"] = mean(on_time)
        found[f"{name}_p99_mean_abs_pct"] = mean(p99)
        found[f"{name}_p99_max_abs_pct"] = max(p99)
    rounds = [abs(error) for comparison in comparisons for error in comparison.rounds_pct]
    found["replayed_one_round_on_time_mean_abs_pct"] = mean(rounds)
    found["chance_pct"] = mean(comparison.chance_pct for comparison in comparisons)
    return found


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The least-squares slope of y over x; 0 if it is negative."""
    x_mean, y_mean = mean(xs), mean(ys)
    product = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return max(0.0, product / sum((x - x_mean) ** 2 for x in xs))


HEADER = (
    f"{'load':>5}{'cv':>4}{'scale':>6}{'n':>7} |{'live %':>8}{'replayed':>15}{'predicted':>15}"
    f"{'profile':>15} |{'p99 ms':>8}{'replayed':>16}{'predicted':>10} |"
    f"{'pace told, was':>18}{'others':>8}{'late':>6}"
)


def line(comparison: Comparison) -> str:
    """A row of the table under `HEADER`."""
    c, live, errors = comparison, comparison.live, comparison.errors
    shares = "".join(
        f"{each.on_time_pct:7.2f} {f'({errors[name].on_time_pct:+.2f})':>7}"
        for name, each in (
            ("replayed", c.replayed),
            ("predicted", c.predicted),
            ("profile_only", c.profile_only),
        )
    )
    told, was = mean(c.paces.values()), mean(c.own_paces.values())
    return (
        f"{c.point.load:5.2f}{c.point.cv:4.0f}{c.point.scale:6.0f}{live.requests:7d} |"
        f"{live.on_time_pct:8.2f}{shares} |"
        f"{live.p99_ms:8.1f}{c.replayed.p99_ms:8.1f}{errors['replayed'].p99_pct:+7.1f}%"
        f"{errors['predicted'].p99_pct:+9.1f}% |"
        f"{told:9.3f}{was:9.3f}{c.others_pct:7.1f}%{c.late_ms:6.1f}"
    )


# -- the simulations


def experiment(point: Point, fleet: Fleet, seconds: float) -> Experiment:
    """The experiment of a point on a fleet."""
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
    """Play requests in the simulator; return how each ended for its caller.

    Args:
        fleet: What the scheduler knows of the devices, and their truth.
        policy: The policy.
        requests: The requests to play.
        caller: The delays between caller and box.
        seed: Seeds the service times.
        first: Requests played before them, followed by a rest; what is learned from them stays.
    """
    if first:
        start_ns = rested_ns(first)
        later = [replace(r, at_ns=r.at_ns + start_ns) for r in requests]
        return simulate(fleet, policy, [*first, *later], caller, seed)[len(first) :]
    simulator = Simulator(
        PolicyChoice.parse(policy).make(),
        fleet.targets(),
        fleet.service_time(seed),
        world=fleet.world(seed),
        at_once=True,
    )
    heard = [Heard("none", False, 0)] * len(requests)
    for ending in simulator.run(caller.send(requests)):
        number = ending.finish.request_id - 1
        latency_ns = ending.at_ns + caller.back_ns - requests[number].at_ns
        on_time = ending.in_time and latency_ns <= requests[number].budget_ns
        heard[number] = Heard(ending.finish.outcome.value, on_time, latency_ns)
    return heard


def rested_ns(first: Sequence[Arrival]) -> int:
    """When the next workload begins in a simulation that begins with these requests."""
    return first[-1].at_ns + max(each.budget_ns for each in first) + int(REST_S * 1e9)
