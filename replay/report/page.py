"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from replay.report.cases import Study, differences, study
from replay.report.figures import ENDINGS
from replay.report.notes import notes
from replay.report.sections import (
    calibration_chart,
    calibrations,
    case_chart,
    case_parts,
    cost_chart,
    detailed,
    difference_chart,
    load_charts,
)
from replay.report.svg import legend_mark
from replay.report.table import BETWEEN_PARTS, BILLED, cells, columns, compared
from replay.results import RunResult
from scheduler.files import write_output


def write_report(
    results: Sequence[RunResult],
    path: Path,
    compare: tuple[str, str] | None = None,
) -> None:
    """Writes the report to a file; the same results give the same bytes.

    Args:
        results: The runs, in the order in which policies and scenarios are to appear.
        path: The file to write.
        compare: Two policies to compare; by default the two of results that have exactly two.

    Raises:
        OSError: The file can't be written.
        ValueError: A policy of `compare` has no runs.
    """
    # Characters that can't be encoded, e.g. in a file's name, are replaced as on a terminal.
    write_output(path, page(results, compare).encode("utf-8", "replace"))


def page(results: Sequence[RunResult], compare: tuple[str, str] | None = None) -> str:
    """The report as HTML text."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["parted"] = _parted
    found = study(results)
    titles = [column.title for column in columns(found)]
    parts = {
        "title": _title(found),
        "facts": _facts(found),
        "notes": notes(found),
        "columns": titles,
        "billed": " and ".join(each for each in titles if each in BILLED).capitalize(),
        "policies": _policies(found),
        "endings": ENDINGS,
        "by_case": _by_case(found),
        "bounded": any(run.result.bound is not None for run in found.runs()),
        "graded": any(run.result.accuracy_share is not None for run in found.runs()),
        "intervals": any(len(runs) > 1 for runs in found.cells.values()),
        "loads": load_charts(found),
        "rest": case_chart(found),
        "pair": None,
        "cost": cost_chart(found),
        **_calibration(found),
        **_differences(found, compare),
        "cases": [case_parts(found, case) for case in detailed(found)],
        "case_count": len(found.cases),
    }
    return templates.get_template("page.html.j2").render(parts)


def _parted(name: str) -> Markup:
    """A policy's name that is wrapped between its parts where possible."""
    return Markup("<wbr>").join(BETWEEN_PARTS.split(name))


def _title(found: Study) -> str:
    """What was played with what, so that one report can be told from another."""
    scenarios = list(dict.fromkeys(case.scenario for case in found.cases))
    return f"{_few(found.policies, 'policies')} on {_few(scenarios, 'scenarios')}"


def _few(names: Sequence[str], what: str) -> str:
    *others, last = names or ("nothing",)
    if len(others) > 2:
        return f"{len(names)} {what}"
    return f"{', '.join(others)} and {last}" if others else last


def _facts(found: Study) -> str:
    runs = list(found.runs())
    against = {"sim": "simulated", "live": "against a running daemon"}
    ways = sorted({run.result.against for run in runs}, reverse=True)
    seeds = len({run.result.seed for run in runs})
    counts = [
        _count(len(found.policies), "policy", "policies"),
        _count(len(found.cases), "case", "cases"),
        _count(seeds, "seed", "seeds"),
        _count(sum(run.requests for run in runs), "request", "requests") + " in all",
    ]
    return ", ".join(counts) + "; " + " and ".join(against[way] for way in ways)


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _policies(found: Study) -> list[dict[str, Any]]:
    return [
        {"name": policy, "mark": legend_mark(series), "cells": cells(found, policy)}
        for series, policy in enumerate(found.policies)
    ]


def _by_case(found: Study) -> list[dict[str, Any]]:
    if len(found.cases) < 2:
        return []
    return [
        {
            "name": case.name,
            "policies": [
                {"name": policy, "cells": cells(found, policy, case)}
                for policy in found.policies
                if (case, policy) in found.cells
            ],
        }
        for case in found.cases
    ]


def _calibration(found: Study) -> dict[str, Any]:
    said = calibrations(found)
    rows = [
        {"policy": each.policy, "gap": f"{each.gap * 100:+.1f}", "batches": f"{each.batches:,}"}
        for each in said
    ]
    live = all(run.result.against == "live" for run in found.runs())
    without = "A live run reports no promises" if live else "Nothing was promised"
    return {
        "calibration": calibration_chart(found, said),
        "calibration_rows": rows,
        "calibration_without": f"{without}: no run has a calibration.",
    }


def _differences(found: Study, compare: tuple[str, str] | None) -> dict[str, Any]:
    pair = compared(found, compare)
    if pair is None:
        return {}
    return {"pair": pair, "difference": difference_chart(pair, differences(found, *pair))}
