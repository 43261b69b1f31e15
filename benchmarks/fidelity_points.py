"""The pure half of the fidelity benchmark: its points, its simulations, its comparison."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, pstdev

from replay.caller import Caller
from replay.experiment import Experiment, PolicyChoice
from replay.fleet import Fleet
from replay.simulator import Arrival, Simulator
from replay.sources import WorkloadSource
from replay.workloads import Fixed, Mix, MixEntry, Stream, Uniform, Workload
from replay.workloads.processes import Gamma

LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
CVS = (1.0, 3.0)
SCALES = (3.0, 8.0)

SPREAD = 0.25
"""By up to so much of it deadlines differ from a point's scale. Where all are alike, and a batch
takes just as long as there is time, the smallest difference of a prediction decides about all."""

REST_S = 3.0
"""Between two workloads, so that what the daemon has learned is stale, as in a new simulation."""

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


def plan(count: int | None, seed: int, number: int) -> list[Point]:
    """The points of a round in an order by chance, so that a change of the machine is none of the
    load.

    Args:
        count: How many of them, the same in each round; None is all.
        seed: Of what is taken, and of the order.
        number: Of the round.
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
        quantile_of(latencies, 0.5) / MS,
        quantile_of(latencies, 0.99) / MS,
        {name: 100 * n / count for name, n in Counter(h.outcome for h in heard).most_common()},
    )


def quantile_of(ordered: Sequence[int], quantile: float) -> float:
    """The value that a share `quantile` of some in ascending order does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """A point played once, and simulated.

    Attributes:
        live: How each request ended at the box.
        simulated: How in the simulator, by repeat.
        own_times: The same where batches take what they took in this very round.
        profile_only: The same where the simulator knows the profiles alone.
        paces: By target, how many times as long as learned its batches took in the probes before
            and after; the simulator is told.
        own_paces: The same in the round; the simulator isn't told.
        others_pct: As in `Played`.
        late_ms: By how much the generator was late, 99th percentile.
    """

    live: Sequence[Heard]
    simulated: Sequence[Sequence[Heard]]
    own_times: Sequence[Sequence[Heard]]
    profile_only: Sequence[Heard]
    paces: Mapping[str, float]
    own_paces: Mapping[str, float]
    others_pct: float
    late_ms: float

    @property
    def error_pct(self) -> float:
        """The simulated on-time share minus that of the box, in percentage points."""
        return summary(pooled(self.simulated)).on_time_pct - summary(self.live).on_time_pct


@dataclass(frozen=True, slots=True)
class Comparison:
    """The simulator beside the box at one point, all rounds together.

    Attributes:
        point: The workload.
        live: What the box made of it.
        simulated: What the simulator did, over all repeats.
        rounds_pct: By round, how far the simulated on-time share was off.
        chance_pct: The standard deviation of the simulated on-time share over the repeats: how
            far two runs are apart by chance alone.
        own_times_pct: The on-time share of simulations whose batches take what they took at this
            very point: what is off then is the simulator's logic, and not its knowledge.
        profile_only_pct: The on-time share of a simulation that knows the profiles alone.
        paces: As in `Round`, the mean of all.
        own_paces: As in `Round`, the mean of all.
        others_pct: As in `Round`, the mean.
        late_ms: As in `Round`, the worst.
    """

    point: Point
    live: Summary
    simulated: Summary
    rounds_pct: list[float]
    chance_pct: float
    own_times_pct: float
    profile_only_pct: float
    paces: dict[str, float]
    own_paces: dict[str, float]
    others_pct: float
    late_ms: float

    @classmethod
    def of(cls, point: Point, rounds: Sequence[Round]) -> Comparison:
        """Puts all rounds of a point together; at least one."""
        live = summary(pooled([each.live for each in rounds]))
        repeats = [pooled(runs) for runs in zip(*(r.simulated for r in rounds), strict=True)]
        own_times = pooled([pooled(each.own_times) for each in rounds])
        return cls(
            point,
            live,
            replace(summary(pooled(repeats)), requests=live.requests),
            [each.error_pct for each in rounds],
            pstdev([summary(run).on_time_pct for run in repeats]),
            summary(own_times).on_time_pct,
            summary(pooled([each.profile_only for each in rounds])).on_time_pct,
            {t: mean(each.paces[t] for each in rounds) for t in rounds[0].paces},
            {t: mean(each.own_paces[t] for each in rounds) for t in rounds[0].own_paces},
            mean(each.others_pct for each in rounds),
            max(each.late_ms for each in rounds),
        )

    @property
    def on_time_error_pct(self) -> float:
        """The simulated on-time share minus that of the box, in percentage points."""
        return self.simulated.on_time_pct - self.live.on_time_pct

    @property
    def p99_error_pct(self) -> float:
        """By how many percent the simulated 99th percentile is off."""
        return 100 * (self.simulated.p99_ms / self.live.p99_ms - 1) if self.live.p99_ms else 0.0


def pooled(runs: Iterable[Iterable[Heard]]) -> list[Heard]:
    """The endings of several runs, as if they were one."""
    return [heard for run in runs for heard in run]


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
        "one_round_on_time_mean_abs_pct": mean(abs(e) for c in comparisons for e in c.rounds_pct),
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


# -- the simulations


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
