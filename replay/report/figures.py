"""What a report needs of a run: shares, quantiles and bins, small for a run of any length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from replay.results import ANSWERED, RunResult, Tally
from scheduler.core.names import natural
from scheduler.core.outcomes import REFUSALS

Floats = npt.NDArray[np.float64]

BINS = 96
"""The number of bins over time, up to the end of the longest run of a case."""
RATIO_STEPS = 200
RATIO_HIGH = 2.0
"""The largest latency shown, as a share of the deadline, and the number of steps up to it."""

ENDINGS = ("on time", "late", "refused", "expired", "failed")


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run over time, in bins from its start to its end.

    Attributes:
        bin_s: The width of a bin, in seconds.
        endings: Requests per second by ending, at the time they were due: (endings, bins).
        queue_mean: Mean length of the queue.
        queue_high: Greatest length of the queue.
        busy: For each target, the share of the time in which it held a batch.
        down: For each target, the share of the time in which it was down.
        looked: Whether queue and targets were sampled, which is not possible in a live run.
    """

    bin_s: float
    endings: Floats
    queue_mean: Floats
    queue_high: Floats
    busy: Mapping[str, Floats]
    down: Mapping[str, Floats]
    looked: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """The kept rows of a run, as columns."""

    intended_ns: npt.NDArray[np.int64]
    latency_ns: npt.NDArray[np.int64]
    budget_ns: npt.NDArray[np.int64]
    weight: Floats
    ending: npt.NDArray[np.int64]
    answered: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run.

    Attributes:
        result: The run.
        requests: Number of requests.
        on_time: The share of the weight that was on time; None without requests.
        of_bound: The same as a share of the bound.
        p50_ms: Median latency of the results.
        p99_ms: 99 % quantile of the latency of the results.
        endings: Number of requests per ending.
        on_time_per_s: Requests on time per second, from the start to the last end.
        after_last: The share of the on-time weight that was not done when the last request came.
        within: Share of the weight answered within 0, 1, ... `RATIO_STEPS` steps of its budget.
        columns: The kept rows, from which `timelines` are made.
    """

    result: RunResult
    requests: int
    on_time: float | None
    of_bound: float | None
    p50_ms: float | None
    p99_ms: float | None
    endings: Mapping[str, int]
    on_time_per_s: float
    after_last: float
    within: Floats
    columns: Columns

    @property
    def last_ns(self) -> int:
        """When the last request was due, or the last sample taken, since the start."""
        last_ns = int(np.max(self.columns.intended_ns, initial=0))
        return max(last_ns, max((each.at_ns for each in self.result.timeline), default=0))

    @property
    def cost(self) -> float | None:
        """The cost of all batches; None for a live run, where it isn't known."""
        return self.result.cost if self.result.against == "sim" else None

    @property
    def energy_j(self) -> float | None:
        """The energy of all batches, in joules; None for a live run, where it isn't known."""
        return self.result.energy_j if self.result.against == "sim" else None

    def share(self, ending: str) -> float | None:
        """The share of the requests with an ending; None without requests."""
        return self.endings[ending] / self.requests if self.requests else None


def figures(result: RunResult) -> Figures:
    """Computes the figures of a run, reading every row once."""
    total = result.total()
    columns = _columns(result)
    latencies_ns = np.sort(columns.latency_ns[columns.answered])
    return Figures(
        result=result,
        requests=total.requests,
        on_time=total.on_time_share() if total.requests else None,
        of_bound=result.bound_share() if total.requests else None,
        p50_ms=_quantile_ms(latencies_ns, 0.5),
        p99_ms=_quantile_ms(latencies_ns, 0.99),
        endings=endings(total),
        on_time_per_s=_per_s(total.on_time, columns),
        after_last=_after_last(columns),
        within=_within(columns),
        columns=columns,
    )


def endings(tally: Tally) -> dict[str, int]:
    """Number of requests per ending; every request has exactly one of `ENDINGS`."""
    counts = Counter(dict.fromkeys(ENDINGS, 0))
    for outcome, count in tally.outcomes.items():
        counts[_ending(outcome, False)] += count
    counts["late"] -= tally.on_time
    counts["on time"] = tally.on_time
    return dict(counts)


def _ending(outcome: str, on_time: bool) -> str:
    if on_time:
        return "on time"
    if outcome in ANSWERED:
        return "late"
    if outcome in REFUSALS:
        return "refused"
    return "expired" if outcome == "expired" else "failed"


def _columns(result: RunResult) -> Columns:
    count = len(result.rows)
    whole = np.zeros((3, count), np.int64)
    weight = np.zeros(count)
    ending = np.zeros(count, np.int64)
    answered = np.zeros(count, np.bool_)
    for index, row in enumerate(result.rows):
        whole[:, index] = row.intended_ns, row.ended_ns - row.intended_ns, row.budget_ns
        weight[index] = row.weight
        ending[index] = ENDINGS.index(_ending(row.outcome, row.on_time))
        answered[index] = row.outcome in ANSWERED
    return Columns(whole[0], whole[1], whole[2], weight, ending, answered)


def _quantile_ms(latencies_ns: npt.NDArray[np.int64], quantile: float) -> float | None:
    # The same rule as in `RunResult.quantile_ms`, for rows that are sorted already.
    if not len(latencies_ns):
        return None
    return float(latencies_ns[max(0, ceil(quantile * len(latencies_ns)) - 1)]) / 1e6


def _within(columns: Columns) -> Floats:
    total = float(columns.weight.sum())
    if not total:
        return np.zeros(RATIO_STEPS + 1)
    usable = columns.answered & (columns.budget_ns > 0)
    ratio = columns.latency_ns[usable] / columns.budget_ns[usable]
    order = np.argsort(ratio, kind="stable")
    summed = np.concatenate([[0.0], np.cumsum(columns.weight[usable][order])])
    steps = np.arange(RATIO_STEPS + 1) / (RATIO_STEPS / RATIO_HIGH)
    return np.asarray(summed[np.searchsorted(ratio[order], steps, side="right")] / total)


def _per_s(count: int, columns: Columns) -> float:
    last_ns = float(np.max(columns.intended_ns + columns.latency_ns, initial=0))
    return count / last_ns * 1e9 if last_ns else 0.0


def _after_last(columns: Columns) -> float:
    on_time = columns.ending == ENDINGS.index("on time")
    last_ns = np.max(columns.intended_ns, initial=0)
    ended_ns = columns.intended_ns + columns.latency_ns
    after = on_time & (columns.intended_ns < last_ns) & (last_ns < ended_ns)
    whole = float(columns.weight[on_time].sum())
    return float(columns.weight[after].sum()) / whole if whole else 0.0


def timelines(runs: Sequence[Figures]) -> list[Timeline | None]:
    """Runs of one case over time, in bins of the same width; None for a run without duration."""
    width_ns = max((run.last_ns for run in runs), default=0) / BINS
    return [_timeline(run, width_ns) if run.last_ns else None for run in runs]


def _timeline(run: Figures, width_ns: float) -> Timeline:
    columns, samples = run.columns, run.result.timeline
    bins = ceil(run.last_ns / width_ns - 1e-9)
    edges_ns = np.linspace(0.0, width_ns * bins, bins + 1, dtype=np.float64)
    at = np.clip((columns.intended_ns / width_ns).astype(np.int64), 0, bins - 1)
    counts = np.zeros((len(ENDINGS), bins))
    np.add.at(counts, (columns.ending, at), float(run.result.rows.stride))
    at_ns = np.array([sample.at_ns for sample in samples], np.float64)
    queued = np.array([sample.queued for sample in samples], np.float64)
    names = sorted({name for sample in samples for name in sample.busy}, key=natural)
    held = {name: [sample.busy.get(name, 0) for sample in samples] for name in names}

    def shares(marked: Callable[[int | None], bool]) -> dict[str, Floats]:
        return {
            name: _mean(at_ns, np.array(list(map(marked, counts)), np.float64), edges_ns)
            for name, counts in held.items()
        }

    return Timeline(
        bin_s=width_ns / 1e9,
        endings=counts / (width_ns / 1e9),
        queue_mean=_mean(at_ns, queued, edges_ns),
        queue_high=_high(at_ns, queued, edges_ns),
        busy=shares(bool),
        down=shares(lambda count: count is None),
        looked=bool(samples),
    )


def _mean(at_ns: Floats, values: Floats, edges_ns: Floats) -> Floats:
    """Mean in each bin of a step function that keeps each value until the next; 0 at first."""
    if not len(at_ns):
        return np.zeros(len(edges_ns) - 1)
    until_ns = np.append(at_ns, max(edges_ns[-1], at_ns[-1]))
    area = np.concatenate([[0.0], np.cumsum(values * np.diff(until_ns))])
    found = np.diff(np.interp(edges_ns, until_ns, area)) / np.diff(edges_ns)
    return np.asarray(found, np.float64)


def _high(at_ns: Floats, values: Floats, edges_ns: Floats) -> Floats:
    """Maximum in each bin of a step function that keeps each value until the next."""
    if not len(at_ns):
        return np.zeros(len(edges_ns) - 1)
    before = np.searchsorted(at_ns, edges_ns[:-1], side="right") - 1
    high = np.where(before >= 0, values[np.maximum(before, 0)], 0.0)
    at = np.clip(np.searchsorted(edges_ns, at_ns, side="right") - 1, 0, len(high) - 1)
    np.maximum.at(high, at, values)
    return np.asarray(high, np.float64)
