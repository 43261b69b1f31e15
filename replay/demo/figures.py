"""The demo's figures: what is counted, and the laws that are checked.

`laxity demo --json FILE` writes one object:

    laxity          version of the distribution
    seconds         how long the demo took in all
    box             cores: usable by the demo; device_cores: of cpu:0; generator_cores
    model           name, variant; capacity_per_s: the most items per second by the measured
                    profile, over all batch sizes and targets; alone_ms: p50 of a batch of 1;
                    targets: target, runtime, best_batch, per_s
    phases          a list, in order:
      name            normal, overload_fcfs, overload_goodput, killed_worker
      policy, load    load is the share of the capacity that is offered
      accept_late     whether the callers took late answers
      budget_ms       what the box was told instead of the deadlines; null for the deadlines
      seconds         how long requests were sent
      offered_per_s   requests sent per second
      possible_per_s  min(offered_per_s, capacity_per_s): what a perfect scheduler could do
      goodput_per_s   requests answered in time per second
      share_of_possible  goodput_per_s / possible_per_s
      sent, in_time, late, refused, expired, other   requests; they add up with unfinished
      outcomes        requests by what the box said; in_time and late are by the camera's deadline
      unfinished      requests without an outcome; the laws want 0
      late_unasked    late answers to callers who had not asked for them; the laws want 0
      accuracy        share of right answers among the answers
      latency_ms      p50, p99 of the answers
      deadline_used   p50, p99 of the answers' latency as a share of their deadline
      refusal_ms      p50, p99 of the time in which a refusal was heard; within_5_ms: share
      generator_lag_ms  p99 of how late the generator itself was
    overload        fcfs, goodput: share_of_possible at twice the capacity
    recovery        target, pid, killed_at_s in the phase, results_again_s after the kill (null if
                    none came), and outcomes of what was sent in between; null if nothing was killed
    laws            kept: true or false; broken: sentences
    left_over       processes of the agent that did not end by themselves

A percentile of nothing is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from replay.demo.cameras import Record
from scheduler.core.outcomes import REFUSALS

_CLOCK_TOLERANCE_MS = 5.0
"""The caller notes the end of a request in a callback, which other callbacks may delay. On a busy
machine the delay is longer, by about the generator's largest lag in sending."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the demo.

    Attributes:
        name: Its name in the figures.
        title: Its title in tables.
        policy: The box's policy during it.
        load: The offered share of the capacity.
        accept_late: Whether the callers take late answers.
        budget_ms: What the box is told instead of the deadlines.
        kills: Whether a worker is killed in it.
        why: Its purpose, shown while it runs.
    """

    name: str
    title: str
    policy: str
    load: float
    accept_late: bool
    budget_ms: float | None
    kills: bool
    why: str


TIMEOUT_MS = 1000.0
"""How long a client of an ordinary server waits; the server knows no other deadline."""

PHASES = (
    Phase(
        name="normal",
        title="70 % load",
        policy="goodput",
        load=0.7,
        accept_late=False,
        budget_ms=None,
        kills=False,
        why="A load that the box can carry: nearly everything should be in time.",
    ),
    Phase(
        name="overload_fcfs",
        title="200 %, fcfs",
        policy="fcfs",
        load=2.0,
        accept_late=True,
        budget_ms=TIMEOUT_MS,
        kills=False,
        why="Twice what the box can do, the way ordinary servers work: first come, first served, "
        "and no deadline is known while a request waits, only that its client gives up after 1 s. "
        "So the answers come late, and callers have to take them.",
    ),
    Phase(
        name="overload_goodput",
        title="200 %, goodput",
        policy="goodput",
        load=2.0,
        accept_late=False,
        budget_ms=None,
        kills=False,
        why="The same load, with deadlines, under laxity's own policy: what can't be in time is "
        "refused at once, and the rest is in time.",
    ),
    Phase(
        name="killed_worker",
        title="70 %, kill -9",
        policy="goodput",
        load=0.7,
        accept_late=False,
        budget_ms=None,
        kills=True,
        why="The first load again, and the device's process is killed while it works.",
    ),
)


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, `at_s` into its phase."""

    target: str
    pid: int
    at_s: float


# -- the capacity of the box


def capacity_of(models: Mapping[str, Any], model: str, variant: str) -> dict[str, Any] | None:
    """The `model` part of the figures, from the box's profile; None if nothing runs the model."""
    named = [m for m in models["models"] if m["name"] == model]
    found = [v for m in named for v in m["variants"] if v["name"] == variant]
    targets = [
        {"target": target["target"], "runtime": target["runtime"], **_best(target["latency_ms"])}
        for target in (found[0]["targets"] if found else ())
    ]
    if not targets:
        return None
    return {
        "name": model,
        "variant": variant,
        "capacity_per_s": sum(target["per_s"] for target in targets),
        "alone_ms": min(t["latency_ms"]["1"]["p50"] for t in found[0]["targets"]),
        "targets": targets,
    }


def _best(latency_ms: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    rates = {int(size): int(size) * 1e3 / found["p50"] for size, found in latency_ms.items()}
    best = max(rates, key=lambda size: rates[size])
    return {"best_batch": best, "per_s": rates[best]}


# -- the results


def phase_figures(
    phase: Phase, records: Sequence[Record], seconds: float, capacity_per_s: float
) -> dict[str, Any]:
    """One entry of `phases`."""
    answers = [record for record in records if record.correct is not None]
    refused_ms = [r.latency_ms for r in records if r.outcome in REFUSALS]
    counts = group(Counter(record.verdict or "none" for record in records))
    offered = len(records) / seconds
    possible = min(offered, capacity_per_s)
    goodput = counts["in_time"] / seconds
    said = asdict(phase)
    return {
        **{key: said[key] for key in ("name", "policy", "load", "accept_late", "budget_ms")},
        "seconds": seconds,
        "offered_per_s": offered,
        "possible_per_s": possible,
        "goodput_per_s": goodput,
        "share_of_possible": goodput / possible if possible else None,
        "sent": len(records),
        **counts,
        "outcomes": dict(Counter(r.outcome for r in records if r.outcome is not None)),
        "late_unasked": _late_unasked(records),
        "accuracy": sum(bool(r.correct) for r in answers) / len(answers) if answers else None,
        "latency_ms": percentiles(r.latency_ms for r in answers),
        "deadline_used": percentiles(r.latency_ms / r.shot.deadline_ms for r in answers),
        "refusal_ms": {**percentiles(refused_ms), "within_5_ms": _share_within(refused_ms, 5.0)},
        "generator_lag_ms": percentiles(r.lag_ms for r in records)["p99"],
    }


def group(outcomes: Mapping[str, int]) -> dict[str, int]:
    """Requests by the categories that matter to a caller."""
    named = {
        "in_time": outcomes.get("completed", 0),
        "late": outcomes.get("late", 0),
        "refused": sum(outcomes.get(name, 0) for name in REFUSALS),
        "expired": outcomes.get("expired", 0),
        "unfinished": outcomes.get("none", 0),
    }
    return {**named, "other": sum(outcomes.values()) - sum(named.values())}


def _late_unasked(records: Sequence[Record]) -> int:
    tolerance_ms = _CLOCK_TOLERANCE_MS + max((record.lag_ms for record in records), default=0.0)
    return sum(
        record.outcome == "late" or record.latency_ms > record.shot.deadline_ms + tolerance_ms
        for record in records
        if record.correct is not None and not record.accept_late
    )


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """The 50th and the 99th percentile, each None if there are no values."""
    listed = list(values)
    if not listed:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(listed, (50, 99))
    return {"p50": float(p50), "p99": float(p99)}


def _share_within(values: Sequence[float], limit: float) -> float | None:
    return sum(value <= limit for value in values) / len(values) if values else None


def recovery(kill: Kill | None, records: Sequence[Record]) -> dict[str, Any] | None:
    """How long the box gave no results after a worker was killed.

    Results are back with the first one that was asked for after the kill: earlier requests may have
    been in flight already.
    """
    if kill is None:
        return None
    after = [record for record in records if record.sent_s > kill.at_s]
    again = [record.ended_s for record in after if record.outcome == "completed"]
    until = min(again, default=float("inf"))
    between = Counter(r.outcome or "none" for r in after if r.sent_s < until)
    return {
        "target": kill.target,
        "pid": kill.pid,
        "killed_at_s": kill.at_s,
        "results_again_s": until - kill.at_s if again else None,
        "outcomes": dict(between),
    }


def laws(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Checks that every request has an outcome, and that no caller got an unwanted late answer."""
    broken = []
    for phase in phases:
        if phase["unfinished"]:
            broken.append(f"{phase['unfinished']} requests of {phase['name']} have no outcome")
        if phase["late_unasked"]:
            broken.append(
                f"{phase['late_unasked']} answers of {phase['name']} were late without being "
                "asked for"
            )
    return {"kept": not broken, "broken": broken}
