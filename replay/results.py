"""The results of playing a workload with a policy: the rows, the totals, and their JSON.

Totals are exact for a run of any length. Of every `stride` rows one is kept, so the size of a
result is bounded; quantiles are computed from the kept rows. The kept row is chosen at random: with
eight cameras, taking every eighth request would sample only one camera.
"""

from __future__ import annotations

import json
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scheduler.core.values import value
from scheduler.files import write_output

ANSWERED = ("completed", "late")
"""The outcomes that carry a result."""

Against = Literal["sim", "live"]
_COLUMNS = {"intended_ns": "q", "budget_ns": "q", "ended_ns": "q", "weight": "d", "on_time": "b"}
_FORMAT = 1


@value(frozen=True, slots=True)
class Row:
    """One request.

    Attributes:
        intended_ns: When it was due, measured from the start.
        model: The requested model.
        variant: The variant that ran; if none ran, the only variant the request accepted, or None.
        target: Where it ran; None if it did not run, or if that is unknown.
        priority: As in `Request`.
        weight: As in `Request`.
        budget_ns: Time from `intended_ns` to the deadline.
        outcome: How it ended: a value of `Outcome`, or an error code; `none` if no answer came
            back.
        ended_ns: When it ended, measured from the start.
        on_time: Whether the caller had a result within the budget.
    """

    intended_ns: int
    model: str
    variant: str | None
    target: str | None
    priority: int
    weight: float
    budget_ns: int
    outcome: str
    ended_ns: int
    on_time: bool

    @property
    def latency_ns(self) -> int:
        """Time from when the request was due to its end."""
        return self.ended_ns - self.intended_ns


@dataclass(frozen=True, slots=True)
class Sample:
    """A point of the timeline.

    Attributes:
        at_ns: The moment.
        queued: Requests waiting in the queues.
        busy: Number of batches that each target held; None while it was down.
    """

    at_ns: int
    queued: int
    busy: Mapping[str, int | None]


LATE_ITSELF = "the load generator was late itself"
"""How a note begins on a live run whose requests were sent too late."""


class SendLag(NamedTuple):
    """How long after they were due the requests of a live run were sent."""

    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(slots=True)
class Tally:
    """Counts over a group of requests, all of them included.

    Attributes:
        requests: Number of requests.
        weight: Their total weight.
        on_time: Number with a result within the budget.
        on_time_weight: The total weight of those.
        outcomes: Number of requests per outcome.
    """

    requests: int = 0
    weight: float = 0.0
    on_time: int = 0
    on_time_weight: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.requests + other.requests,
            self.weight + other.weight,
            self.on_time + other.on_time,
            self.on_time_weight + other.on_time_weight,
            self.outcomes + other.outcomes,
        )

    def on_time_share(self) -> float:
        """The share of the weight that had a result within the budget; 1 if there is no weight."""
        return self.on_time_weight / self.weight if self.weight else 1.0


class Rows:
    """Requests in the order in which they ended, stored as columns.

    Args:
        limit: The most rows to keep, an even number. When it is reached, half the rows are dropped
            and the stride doubles.

    Attributes:
        stride: One row is kept out of this many.
        seen: Number of rows appended.
    """

    def __init__(self, limit: int = 200_000) -> None:
        """Begins empty."""
        self.limit = limit
        self.stride = 1
        self.seen = 0
        self._next = 0
        self._chance = random.Random(0).random
        self._numbers = {name: array(code) for name, code in _COLUMNS.items()}
        self._shape = array("l")
        self._shapes: list[tuple[str, str | None, str | None, int, str]] = []
        self._shape_of: dict[tuple[str, str | None, str | None, int, str], int] = {}

    def append(self, row: Row) -> None:
        """Adds a row, if it is the one to keep of its stride."""
        self.seen += 1
        if self.seen <= self._next:
            return
        if len(self._shape) >= self.limit:
            half = self.stride
            self._thin()
            if self._chance() < 0.5:  # the second half of the new, doubled stride is sampled
                self._next = self.limit * half + half + int(self._chance() * half)
                return
        self._next = len(self._shape) * self.stride + self.stride
        self._next += int(self._chance() * self.stride)
        shape = (row.model, row.variant, row.target, row.priority, row.outcome)
        place = self._shape_of.setdefault(shape, len(self._shapes))
        if place == len(self._shapes):
            self._shapes.append(shape)
        self._shape.append(place)
        for name, column in self._numbers.items():
            column.append(getattr(row, name))

    def _thin(self) -> None:
        self.stride *= 2
        kept = [place + (self._chance() < 0.5) for place in range(0, self.limit, 2)]
        self._shape = array("l", [self._shape[place] for place in kept])
        for name, column in self._numbers.items():
            self._numbers[name] = array(column.typecode, [column[place] for place in kept])

    def __len__(self) -> int:
        return len(self._shape)

    def __getitem__(self, index: int) -> Row:
        model, variant, target, priority, outcome = self._shapes[self._shape[index]]
        at = {name: column[index] for name, column in self._numbers.items()}
        return Row(
            at["intended_ns"],
            model,
            variant,
            target,
            priority,
            at["weight"],
            at["budget_ns"],
            outcome,
            at["ended_ns"],
            bool(at["on_time"]),
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def to_data(self) -> dict[str, Any]:
        """The rows as JSON data."""
        columns = {name: column.tolist() for name, column in self._numbers.items()}
        return {
            "limit": self.limit,
            "stride": self.stride,
            "seen": self.seen,
            "shapes": [list(shape) for shape in self._shapes],
            "shape": self._shape.tolist(),
            **columns,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rows:
        """The inverse of `to_data`."""
        rows = cls(data["limit"])
        rows.stride, rows.seen = data["stride"], data["seen"]
        for model, variant, target, priority, outcome in data["shapes"]:
            rows._shapes.append((model, variant, target, priority, outcome))
        rows._shape_of = {shape: place for place, shape in enumerate(rows._shapes)}
        rows._shape = array("l", data["shape"])
        rows._numbers = {name: array(code, data[name]) for name, code in _COLUMNS.items()}
        return rows


@dataclass(slots=True)
class RunResult:
    """One policy on one workload with one seed.

    Attributes:
        scenario: The name of the scenario.
        policy: The name of the policy.
        seed: The seed of the workload and of the service times.
        load: The load as a share of the fleet's capacity, if it was given that way.
        against: Whether the run was on the simulator or against a live daemon.
        rows: The requests that were kept.
        timeline: The queue and the targets over time.
        bound: The share of the weight that a clairvoyant could have finished; None if unknown.
        cost: The cost of all batches on priced targets, including energy that has a price.
        energy_j: The energy of all batches on targets where it is known, in joules.
        calibration: Promised share, observed share, and the number of batches measured.
        tallies: Counts of all requests, by (model, priority).
        notes: What a reader has to know about how the result was obtained.
        closed: Whether the load was closed-loop: requests waited for the answers to earlier ones.
        send_lag: How far the sending of requests was behind the schedule; None for a simulation.
        accuracy_share: The accuracy of the results on time, as a share of the best one of their
            models; None if it isn't known, or if no model has variants that differ in it.
    """

    scenario: str
    policy: str
    seed: int
    load: float | None = None
    against: Against = "sim"
    rows: Rows = field(default_factory=Rows)
    timeline: list[Sample] = field(default_factory=list)
    bound: float | None = None
    cost: float = 0.0
    energy_j: float = 0.0
    calibration: list[tuple[float, float, int]] = field(default_factory=list)
    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    send_lag: SendLag | None = None
    accuracy_share: float | None = None

    def add(self, row: Row) -> None:
        """Adds one request."""
        key = (row.model, row.priority)
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally()
        tally.requests += 1
        tally.weight += row.weight
        tally.outcomes[row.outcome] += 1
        if row.on_time:
            tally.on_time += 1
            tally.on_time_weight += row.weight
        self.rows.append(row)

    def total(self) -> Tally:
        """All requests together."""
        return sum((self.tallies[key] for key in sorted(self.tallies)), Tally())

    def on_time_share(self) -> float:
        """The share of the weight with a result within the budget."""
        return self.total().on_time_share()

    def bound_share(self) -> float | None:
        """The on-time share as a share of the bound; None without a bound."""
        if self.bound is None:
            return None
        return self.on_time_share() / self.bound if self.bound else 1.0

    def quantile_ms(self, quantile: float) -> float | None:
        """A quantile of the latency of the results; None if there are none."""
        latencies_ns = sorted(row.latency_ns for row in self.rows if row.outcome in ANSWERED)
        if not latencies_ns:
            return None
        return latencies_ns[max(0, ceil(quantile * len(latencies_ns)) - 1)] / 1e6

    def p50_ms(self) -> float | None:
        """The median latency of the results."""
        return self.quantile_ms(0.5)

    def p99_ms(self) -> float | None:
        """The latency that 1 % of the results exceed."""
        return self.quantile_ms(0.99)

    def outcomes(self) -> Counter[str]:
        """Number of requests per outcome."""
        return self.total().outcomes

    def by(self, what: Literal["model", "priority"]) -> dict[str | int, Tally]:
        """The requests by model or by priority, in order."""
        place = ("model", "priority").index(what)
        groups: dict[str | int, Tally] = {}
        for key in sorted(self.tallies, key=lambda key: str(key[place])):
            groups[key[place]] = groups.get(key[place], Tally()) + self.tallies[key]
        return groups

    def to_data(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "seed": self.seed,
            "load": self.load,
            "against": self.against,
            "on_time_share": self.on_time_share(),
            "bound_share": self.bound_share(),
            "bound": self.bound,
            "p50_ms": self.p50_ms(),
            "p99_ms": self.p99_ms(),
            "cost": self.cost,
            "energy_j": self.energy_j,
            "outcomes": dict(sorted(self.outcomes().items())),
            "calibration": [list(point) for point in self.calibration],
            "notes": list(self.notes),
            **({"closed": True} if self.closed else {}),
            **({"send_lag_ms": list(self.send_lag)} if self.send_lag else {}),
            **({} if self.accuracy_share is None else {"accuracy_share": self.accuracy_share}),
            "tallies": [_tally_data(key, self.tallies[key]) for key in sorted(self.tallies)],
            "timeline": [[s.at_ns, s.queued, dict(s.busy)] for s in self.timeline],
            "rows": self.rows.to_data(),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RunResult:
        """The inverse of `to_data`."""
        return cls(
            data["scenario"],
            data["policy"],
            data["seed"],
            data["load"],
            data["against"],
            Rows.from_data(data["rows"]),
            [Sample(at_ns, queued, busy) for at_ns, queued, busy in data["timeline"]],
            data["bound"],
            data["cost"],
            data.get("energy_j", 0.0),
            [(promised, observed, count) for promised, observed, count in data["calibration"]],
            dict(map(_tally_of, data["tallies"])),
            list(data["notes"]),
            data.get("closed", False),
            SendLag(*data["send_lag_ms"]) if "send_lag_ms" in data else None,
            data.get("accuracy_share"),
        )


def _tally_data(key: tuple[str, int], tally: Tally) -> dict[str, Any]:
    return {
        "model": key[0],
        "priority": key[1],
        "requests": tally.requests,
        "weight": tally.weight,
        "on_time": tally.on_time,
        "on_time_weight": tally.on_time_weight,
        "outcomes": dict(sorted(tally.outcomes.items())),
    }


def _tally_of(data: Mapping[str, Any]) -> tuple[tuple[str, int], Tally]:
    counts = data["requests"], data["weight"], data["on_time"], data["on_time_weight"]
    return (data["model"], data["priority"]), Tally(*counts, Counter(data["outcomes"]))


def results_json(results: Iterable[RunResult]) -> str:
    """Results as one JSON text; equal results give equal bytes."""
    data = {"format": _FORMAT, "results": [result.to_data() for result in results]}
    return json.dumps(data, separators=(",", ":")) + "\n"


def write_results(results: Iterable[RunResult], path: Path | str) -> None:
    """Writes results to a file.

    Raises:
        OSError: The file can't be written.
    """
    write_output(Path(path), results_json(results))


def read_results(path: Path | str) -> list[RunResult]:
    """Reads a file that `write_results` wrote.

    Raises:
        OSError: The file can't be read.
        ValueError: The file holds no results.
    """
    data = json.loads(Path(path).read_text())
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"{path}: not the results of a replay, or from another version")
    return [RunResult.from_data(each) for each in data["results"]]
