"""The live half of the fidelity benchmark: the box, its observation, and other processes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.fidelity_points import (
    MS,
    PROBE,
    REST_S,
    Heard,
    Point,
    Round,
    experiment,
    quantile_of,
    rested_ns,
    simulate,
    slope,
)
from replay.caller import Caller, observed_caller
from replay.fleet.model import Device, Fleet, Truth
from replay.fleet.world import FIRST_SEED, Link
from replay.journal import read_journal, targets
from replay.live.endings import LiveEnding
from replay.live.replay import play_live
from replay.observed import Observation
from replay.simulator import Arrival
from scheduler import Client

REPEATS = 4
"""The number of simulations of a point, each with other service times."""

CALM_PCT = 10.0
"""A workload starts when other processes use less of the machine than this."""

WAIT_S = 6.0
"""How long to wait for a calm moment, in seconds."""

LEARN_LOADS = (0.3, 0.6, 0.9, 1.2, 1.5)
"""The loads of the workloads from which the true latencies are learned. They are far apart, so that
the slope of CPU time over load is more than chance."""

PROBE_S = 6.0

LINK = {"rtt_ms": 16.0, "mbps": 100.0}


class Others:
    """Measures how much CPU processes outside the box use, from now on."""

    def __init__(self) -> None:
        self._last = self._now()

    def share_pct(self) -> float:
        """The use since the last call, in percent of all CPUs."""
        last, self._last = self._last, self._now()
        own_s, busy_s, all_s = (now - then for now, then in zip(self._last, last, strict=True))
        return max(0.0, 100 * (busy_s - own_s) / all_s)

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        whole_s = sum(times[:8])  # Guest time is already counted as user time.
        own_s = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                own_s += _cpu_s(process)
        return own_s, whole_s - times.idle - times.iowait, whole_s


@dataclass(frozen=True, slots=True)
class Played:
    """A workload and its results at the box.

    Attributes:
        requests: The requests sent.
        endings: How they ended.
        from_ns: When the workload began, on the monotonic clock.
        until_ns: When all requests had ended.
        others_pct: How much of the machine processes outside the box used meanwhile.
    """

    requests: list[Arrival]
    endings: list[LiveEnding]
    from_ns: int
    until_ns: int
    others_pct: float


class Box:
    """A running agent, and what was learned about it.

    Args:
        url: The URL of its native door.
        folder: The folder with its journal.
        policy: Its policy.

    Attributes:
        told: What its scheduler knows: a fleet whose truth is the profiles.
        truths: The learned truth of each target.
        caller: The delays between caller and box.
    """

    def __init__(self, url: str, folder: Path, policy: str) -> None:
        self.url = url
        self.policy = policy
        self.journal = folder / "state" / "journal"
        link = Link(round(LINK["rtt_ms"] * MS), 8e3 / LINK["mbps"])
        time.sleep(REST_S)  # The journal is written with some delay.
        specs = targets(self.journal, lambda _: None)
        devices = [Device(spec, link if spec.remote else None) for spec in specs]
        self.told = Fleet("box", tuple(devices))
        self.truths = {spec.id: Truth() for spec in specs}
        self.caller = Caller()
        with Client(url) as client:
            self.pid = int(client.status()["pid"])

    def learn(self, seconds: float, seed: int) -> None:
        """Observe the box while it serves, to learn the truth for simulations.

        The scheduler shares a core with the first device, and the load generator with the second,
        so the CPU time that they spend each time that requests are submitted is taken from the
        device.
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
        seen = self.observation(all_played)
        counts = [float(seen.came(played.from_ns, played.until_ns)) for played in all_played]
        # Their CPU use without requests is already part of every batch's time.
        shared = {name: round(slope(counts, cpu_s) * 1e9) for name, cpu_s in taken.items()}
        self.truths = {
            device.spec.id: seen.truth(device.spec, shared.get(device.spec.id, 0))
            for device in self.told.devices
        }
        endings = (ending for played in all_played for ending in played.endings)
        self.caller = observed_caller(endings, shared["cpu:0"])

    def probe(self, seed: int) -> Played:
        """Play a short workload, to see how fast the devices are now."""
        return self.play(self.requests(PROBE, PROBE_S, seed))

    def requests(self, point: Point, seconds: float, seed: int) -> list[Arrival]:
        """The requests of a point."""
        return list(experiment(point, self.told, seconds).arrivals(seed))

    def play(self, requests: list[Arrival]) -> Played:
        """Send requests, after a rest."""
        self.calm()
        endings: list[LiveEnding] = []
        others = Others()
        from_ns = time.monotonic_ns()
        with unhindered():
            play_live(self.url, requests, endings.append)
        return Played(requests, endings, from_ns, time.monotonic_ns(), others.share_pct())

    def calm(self) -> None:
        """Rest, and wait for a limited time until other processes leave the machine idle."""
        until_s = time.monotonic() + WAIT_S
        others = Others()
        time.sleep(REST_S)
        while others.share_pct() > CALM_PCT and time.monotonic() < until_s:
            time.sleep(1)

    def observation(self, all_played: Sequence[Played]) -> Observation:
        """The journal's observations of some workloads."""
        steps = [
            (at_ns, step)
            for at_ns, step in read_journal(self.journal, lambda _: None)
            if any(played.from_ns <= at_ns <= played.until_ns for played in all_played)
        ]
        return Observation(steps, self.told.targets())

    def fleet(self, truths: Mapping[str, Truth]) -> Fleet:
        """The fleet that the scheduler knows, with another truth."""
        devices = [replace(device, truth=truths[device.spec.id]) for device in self.told.devices]
        return replace(self.told, devices=tuple(devices))

    def compare(self, played: Played, around: Sequence[Played]) -> Round:
        """Simulate a workload that was played.

        Args:
            played: The workload and its results at the box.
            around: The probes before and after it.
        """
        near = self.observation(around)
        paces = {name: near.pace(name, truth) for name, truth in self.truths.items()}
        truths = {name: replace(t, bias=paces[name]) for name, t in self.truths.items()}
        own = self.observation([played])
        first = around[0].requests
        began_ns = rested_ns(first) + played.requests[0].at_ns + self.caller.there_ns
        own_fleet = self.fleet(
            {
                device.spec.id: own.truth(
                    device.spec, self.truths[device.spec.id].submit_ns, begin_ns=-began_ns
                )
                for device in self.told.devices
            }
        )
        lags = sorted(ending.lag_ns for ending in played.endings)
        return Round(
            [Heard(e.outcome or "none", e.on_time, e.latency_ns) for e in played.endings],
            simulate(own_fleet, self.policy, played.requests, self.caller, FIRST_SEED, first),
            self._predictions(truths, played.requests, first),
            simulate(self.told, self.policy, played.requests, Caller(), 0),
            paces,
            {t.id: own.pace(t.id, self.truths[t.id]) for t in self.told.targets()},
            played.others_pct,
            quantile_of(lags, 0.99) / MS,
        )

    def _predictions(
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
    """Give this process, which must send in time, real-time priority if allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        say("no right to real-time priority: the generator may be late")
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pin(pid: int, core: int) -> None:
    """Pin all threads of a process to one core."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(task), [core])


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
