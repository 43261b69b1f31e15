"""The parts of the page, each made from the study alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from replay.report.cases import Case, Difference, Study, sweeps
from replay.report.figures import RATIO_HIGH, RATIO_STEPS, Figures, timelines
from replay.report.lines import Line, Point, line_chart
from replay.report.over_time import heights, time_chart
from replay.report.rows import Bar, Dots, bar_chart, dot_chart, head
from replay.report.statistics import Estimate, estimate
from replay.report.svg import Axis, count_axis, legend_mark, share_axis, ticks
from replay.report.table import money, percent, points, verdict

_PANELS = 36
_KEYS = 8
_CDF_HIGH = 1.5


def _words(found: Estimate) -> str:
    return f"{percent(found)} %"


def _point(x: float, found: Estimate, words: str) -> Point:
    known = found.half_width is not None
    low, high = (max(0.0, found.low), min(1.0, found.high)) if known else (None, None)
    return Point(x, found.mean, words, low, high)


def bound(found: Study, case: Case) -> float | None:
    """The mean bound of a case."""
    mean = estimate(run.result.bound for run in found.runs(case=case))
    return mean.mean if mean else None


# -- on time, over load or case by case


def load_charts(found: Study) -> list[tuple[str, Markup]]:
    """A chart for each scenario that was played at two or more loads."""
    return [(name, _load_chart(found, name, cases)) for name, cases in sweeps(found.cases).items()]


def _load_chart(found: Study, name: str, cases: Sequence[Case]) -> Markup:
    at = [(case, case.load) for case in cases if case.load is not None]
    bounds = [(load, bound(found, case)) for case, load in at]
    ceiling = [Point(load, share) for load, share in bounds if share is not None]
    lines: list[Line] = []
    for series, policy in enumerate(found.policies):
        means = [(case, load, found.over_seeds(_on_time, policy, case)) for case, load in at]
        drawn = [
            _point(load, mean, f"{policy} at load {load:g}: {_words(mean)}")
            for _, load, mean in means
            if mean
        ]
        lines.append(Line(policy, drawn, series))
    lines.append(Line("bound", ceiling, None, marks=False))
    low, high = at[0][1], at[-1][1]
    x = Axis("load (share of the fleet's capacity)", low, high, ticks(low, high, 4))
    return line_chart(f"On-time share over load in {name}", lines, x, share_axis("on time"))


def _on_time(run: Figures) -> float | None:
    return run.on_time


def case_chart(found: Study) -> Markup | None:
    """Rows of marks for the cases played at a single load; None if there are none."""
    swept = sweeps(found.cases)
    rows = []
    for case in found.cases:
        if any(case in cases for cases in swept.values()):
            continue
        drawn = []
        for series, policy in enumerate(found.policies):
            mean = found.over_seeds(_on_time, policy, case)
            if mean:
                drawn.append((series, _sideways(mean, f"{policy}: {_words(mean)}")))
        rows.append(Dots(head(case.name, ""), drawn, bound(found, case)))
    if not rows:
        return None
    return dot_chart("On-time share of each policy in each case", rows, share_axis("on time"))


def _sideways(found: Estimate, words: str) -> Point:
    point = _point(0.0, found, words)
    return Point(found.mean, 0.0, words, point.low, point.high)


# -- over all cases


def difference_chart(pair: tuple[str, str], found: Sequence[Difference]) -> Markup | None:
    """The paired differences around zero."""
    if not found:
        return None
    reach = max(max(abs(each.estimate.low), abs(each.estimate.high)) for each in found)
    high = count_axis("", max(0.005, reach) * 100, 3).high
    axis_ticks = [(value, f"{value:+g}" if value else "0") for value in (-high, -high / 2, 0.0)]
    axis_ticks += [(value, f"{value:+g}") for value in (high / 2, high)]
    rows = []
    for each in found:
        mean = each.estimate
        low, high_end = mean.low * 100, mean.high * 100
        known = mean.half_width is not None
        words = f"{points(mean)}, {verdict(each)}"
        point = Point(
            mean.mean * 100, 0.0, words, low if known else None, high_end if known else None
        )
        name = each.case.name if each.case else f"mean of {len(found) - 1} cases"
        rows.append(Dots(head(name, f": {words}"), [(0, point)]))
    x = Axis("percentage points more on time", -high, high, axis_ticks)
    return dot_chart(f"On-time share of {pair[0]} less that of {pair[1]}", rows, x, zero=True)


def cost_chart(found: Study) -> Markup | None:
    """The cost of a thousand requests on time; None if there is no cost, or none is on time."""
    if not any(map(_cost_per_thousand, found.runs())):
        return None
    bars = []
    for series, policy in enumerate(found.policies):
        mean = found.overall(_cost_per_thousand, policy)
        if mean:
            known = mean.half_width is not None
            low, high = (max(0.0, mean.low), mean.high) if known else (None, None)
            bars.append(Bar(policy, series, mean.mean, money(mean), low, high))
    most = max(bar.high or bar.value for bar in bars)
    x = count_axis("cost per 1,000 requests on time", most, 2)
    return bar_chart("Cost per thousand requests on time", [("", bars)], x)


def _cost_per_thousand(run: Figures) -> float | None:
    on_time = run.endings["on time"]
    return run.cost / on_time * 1000 if run.cost is not None and on_time else None


@dataclass(frozen=True, slots=True)
class PolicyCalibration:
    """How well a policy's predictions held."""

    policy: str
    points: Sequence[tuple[float, float, int]]

    @property
    def batches(self) -> int:
        """How many batches were measured; each of them counts for every promise."""
        return max(count for _, _, count in self.points)

    @property
    def gap(self) -> float:
        """Observed minus promised share, as a mean over promises and batches."""
        counts = sum(count for _, _, count in self.points)
        return sum((seen - said) * count for said, seen, count in self.points) / counts


def calibrations(found: Study) -> list[PolicyCalibration]:
    """Promised and observed shares of each policy, over all its runs."""
    said = []
    for policy in found.policies:
        sums: dict[float, tuple[float, int]] = {}
        for run in found.runs(policy):
            for promised, observed, count in run.result.calibration:
                share, batches = sums.get(round(promised, 4), (0.0, 0))
                sums[round(promised, 4)] = share + observed * count, batches + count
        kept = [
            (key, share / count, count) for key, (share, count) in sorted(sums.items()) if count
        ]
        if kept:
            said.append(PolicyCalibration(policy, kept))
    return said


def calibration_chart(found: Study, said: Sequence[PolicyCalibration]) -> Markup | None:
    """Observed over promised shares; None if nothing was promised."""
    if not said:
        return None
    lines: list[Line] = []
    for each in said:
        drawn = [
            Point(
                promised,
                observed,
                f"{each.policy}: promised {promised * 100:g} %, observed {observed * 100:.1f} % "
                f"of {count:,} batches",
            )
            for promised, observed, count in each.points
        ]
        lines.append(Line(each.policy, drawn, list(found.policies).index(each.policy)))
    lines.append(Line("as promised", [Point(0.0, 0.0), Point(1.0, 1.0)], None, marks=False))
    x = share_axis("batches promised to be done in the predicted time")
    return line_chart("Promised against observed", lines, x, share_axis("observed"))


# -- case by case


def detailed(found: Study) -> list[Case]:
    """The cases to show in detail: those in which the policies differ most."""
    limit = max(1, _PANELS // max(1, len(found.policies)))

    def difference(case: Case) -> float:
        means = [found.over_seeds(_on_time, policy, case) for policy in found.policies]
        shares = [mean.mean for mean in means if mean]
        return max(shares) - min(shares) if shares else 0.0

    chosen = sorted(found.cases, key=lambda case: -difference(case))[:limit]
    return [case for case in found.cases if case in chosen]


def case_parts(found: Study, case: Case) -> dict[str, Any]:
    """All charts of one case."""
    first = {
        policy: runs[0] for policy in found.policies if (runs := found.cells.get((case, policy)))
    }
    over_time = zip(first, timelines(list(first.values())), strict=True)
    shown = {policy: timeline for policy, timeline in over_time if timeline}
    shared = heights(list(shown.values()))
    return {
        "name": case.name,
        "latency": _latency_chart(found, case),
        "models": _split_chart(found, case, "model"),
        "priorities": _split_chart(found, case, "priority"),
        "panels": [
            {
                "policy": policy,
                "seed": first[policy].result.seed,
                "mark": legend_mark(list(found.policies).index(policy)),
                "chart": time_chart(f"{case.name} under {policy} over time", timeline, shared),
            }
            for policy, timeline in shown.items()
        ],
    }


def _latency_chart(found: Study, case: Case) -> Markup:
    lines = []
    steps = round(RATIO_STEPS * _CDF_HIGH / RATIO_HIGH)
    for series, policy in enumerate(found.policies):
        runs = found.cells.get((case, policy), [])
        if runs:
            shares = np.mean([run.within for run in runs], axis=0)
            drawn = [
                Point(step * RATIO_HIGH / RATIO_STEPS, float(shares[step]))
                for step in range(steps + 1)
            ]
            lines.append(Line(policy, drawn, series, marks=False))
    x = share_axis("latency as a share of the time allowed", _CDF_HIGH)
    return line_chart(
        f"Share of requests answered within a share of their deadline, {case.name}",
        lines,
        x,
        share_axis("answered, of all requests"),
        at=(1.0, "deadline"),
    )


def _split_chart(found: Study, case: Case, what: Literal["model", "priority"]) -> Markup | None:
    """A bar per policy for each model or priority; None if there is only one of them."""
    groups: dict[str | int, list[Bar]] = {}
    requests = Counter[str | int]()
    for series, policy in enumerate(found.policies):
        shares: dict[str | int, list[float]] = {}
        for run in found.cells.get((case, policy), ()):
            for key, tally in run.result.by(what).items():
                shares.setdefault(key, []).append(tally.on_time_share())
                requests[key] += tally.requests
        for key, values in shares.items():
            mean = estimate(values)
            if mean:
                point = _point(0.0, mean, "")
                bar = Bar(policy, series, mean.mean, _words(mean), point.low, point.high)
                groups.setdefault(key, []).append(bar)
    if len(requests) < 2:
        return None
    runs = len(list(found.runs(case=case)))
    chosen = sorted(sorted(requests, key=str), key=lambda key: -requests[key])[:_KEYS]
    chosen.sort(key=lambda key: (key, "") if isinstance(key, int) else (0, key))
    drawn = [(_head(what, key, requests[key] / runs), groups[key]) for key in chosen]
    more = f" ({_KEYS} of {len(requests)})" if len(requests) > _KEYS else ""
    return bar_chart(f"On time by {what}, {case.name}", drawn, share_axis(f"on time{more}"))


def _head(what: str, key: str | int, requests: float) -> str:
    name = f"priority {key}" if what == "priority" else str(key)
    return head(name, f" · {requests:,.0f} requests per run")
