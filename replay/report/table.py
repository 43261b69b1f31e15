"""The numbers of a report: a row per policy for people, a row per run for programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replay.report.cases import Case, Difference, Measure, Study, differences, study
from replay.report.figures import ENDINGS, figures
from replay.report.notes import notes
from replay.report.statistics import Estimate
from replay.results import RunResult, SendLag
from scheduler.shares import per_cent

_CASES_ON_TERMINAL = 12
_WIDE, _NARROW, _TINY = 140, 100, 60
_FEW, _MOST_LEFT_OUT = 2, 5
_POLICY_WIDTH = 8
"""The least width of a policy's name; a longer name is wrapped."""
BETWEEN_PARTS = re.compile(r"(?<=[?&,:=/(_ ])(?! )|(?<=[a-z]\.)(?=[A-Za-z])")
"""Where a policy's name is wrapped, if it must be."""

_NOTHING = "–"  # noqa: RUF001 - a dash marks an empty cell


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        title: Its name with the unit.
        measure: Its value in a run.
        write: Formats a mean and its half-width.
    """

    title: str
    measure: Measure
    write: Callable[[Estimate], str]


def percent(found: Estimate) -> str:
    """A share in per cent: `93.4 ± 0.5`."""
    return _with_interval(per_cent(found.mean), found.half_width and found.half_width * 100, ".1f")


def milliseconds(found: Estimate) -> str:
    """A duration given in milliseconds."""
    decimals = 2 if found.mean < 10 else 1 if found.mean < 100 else 0
    return _written(found, f",.{decimals}f")


def money(found: Estimate) -> str:
    """A cost in the unit of the fleet's costs, or an energy: with at least three digits."""
    if not found.mean:
        return "0"
    decimals = next((d for d in range(8) if abs(found.mean) * 10**d >= 100), None)
    # The cost of a few requests' energy is so small that fixed decimals would all be zeros.
    form = ".2e" if decimals is None else f",.{decimals}f"
    return _written(found, form)


def _written(found: Estimate, form: str) -> str:
    return _with_interval(f"{found.mean:{form}}", found.half_width, form)


def _with_interval(text: str, half_width: float | None, form: str) -> str:
    return text if half_width is None else f"{text} ± {half_width:{form}}"


def _share_of(ending: str) -> Measure:
    return lambda run: run.share(ending)


_COLUMNS: Sequence[Column] = (
    Column("on time %", lambda run: run.on_time, percent),
    Column("on time/s", lambda run: run.on_time_per_s, milliseconds),
    Column("of bound %", lambda run: run.of_bound, percent),
    Column("accuracy %", lambda run: run.result.accuracy_share, percent),
    Column("p50 ms", lambda run: run.p50_ms, milliseconds),
    Column("p99 ms", lambda run: run.p99_ms, milliseconds),
    *(Column(f"{ending} %", _share_of(ending), percent) for ending in ENDINGS[1:]),
    Column("cost", lambda run: run.cost, money),
    Column("joules", lambda run: run.energy_j, money),
)
BILLED = ("cost", "joules")
"""Columns whose values are totals of a run."""
_NOT_IF_NARROW = ("failed", "joules")
_NOT_IF_FULL = (*_NOT_IF_NARROW, "p50 ms", "late")
_NOT_IF_SMALL = (*_NOT_IF_FULL, "expired", "cost")
_NOT_IF_TINY = (*_NOT_IF_SMALL, "of bound", "accuracy", "p99 ms")


def columns(found: Study) -> list[Column]:
    """The columns of the table, in order, without those that are unknown or say nothing.

    On-time requests per second are shown for closed loops.
    """
    runs = list(found.runs())
    told = {
        "joules": any(run.energy_j for run in runs),
        "on time/s": any(run.result.closed for run in runs),
        "of bound %": any(run.of_bound is not None for run in runs),
        "accuracy %": any(run.result.accuracy_share is not None for run in runs),
        "cost": any(run.cost for run in runs),
    }
    return [column for column in _COLUMNS if told.get(column.title, True)]


def cells(found: Study, policy: str, case: Case | None = None) -> list[str]:
    """A policy's row: means over seeds, of one case or of all cases."""
    row = []
    for column in columns(found):
        if case is None:
            value = found.overall(column.measure, policy)
        else:
            value = found.over_seeds(column.measure, policy, case)
        row.append(_NOTHING if value is None else column.write(value))
    return row


def summary(results: Iterable[RunResult]) -> list[dict[str, Any]]:
    """A row per run, as in `--json`; shares are fractions of 1, unknown values are None."""
    rows = []
    for result in results:
        run = figures(result)
        rows.append(
            {
                "scenario": result.scenario,
                "load": result.load,
                "policy": result.policy,
                "seed": result.seed,
                "against": result.against,
                "requests": run.requests,
                "on_time_share": run.on_time,
                "on_time_per_s": run.on_time_per_s,
                "after_last_share": run.after_last,
                "bound": result.bound,
                "bound_share": run.of_bound,
                "accuracy_share": result.accuracy_share,
                "p50_ms": run.p50_ms,
                "p99_ms": run.p99_ms,
                **{f"send_lag_{key}": ms for key, ms in _send_lag(result).items()},
                "cost": run.cost,
                "energy_j": run.energy_j,
                **{ending.replace(" ", "_"): run.endings[ending] for ending in ENDINGS},
                "outcomes": dict(sorted(result.outcomes().items())),
                "notes": list(result.notes),
            }
        )
    return rows


def _send_lag(result: RunResult) -> dict[str, float | None]:
    lag = result.send_lag
    return dict.fromkeys(SendLag._fields) if lag is None else lag._asdict()


def points(found: Estimate) -> str:
    """A difference of shares, in percentage points: `+1.2 ± 0.3`."""
    text = f"{found.mean * 100:+.2f}"
    return text if found.half_width is None else f"{text} ± {found.half_width * 100:.2f}"


def verdict(difference: Difference) -> str:
    """The verdict on a difference, in words."""
    if difference.estimate.half_width is None:
        seeds = "one seed" if difference.estimate.count == 1 else "cases with different seeds"
        return f"{seeds}: no interval"
    return "clear" if difference.clear else "within chance"


def print_table(
    results: Sequence[RunResult], console: Console, compare: tuple[str, str] | None = None
) -> None:
    """Prints means over seeds, by case and over all cases, and paired differences of two policies.

    Args:
        results: The runs.
        console: The console to print to.
        compare: Two policies to compare; by default the two of results that have exactly two.
    """
    found = study(results)
    if not found.policies:
        console.print("There are no runs to report.")
        return
    blocks = _blocks(found, console.width)
    for title, block in blocks:
        console.print(Text(title, style="bold"))  # not the table's title: it may be wider
        console.print(block)
    if not any(str(column.header).startswith("failed") for column in blocks[0][1].columns):
        _print_failed(found, console)
    pair = compared(found, compare)
    if pair:
        console.print(Text(f"{pair[0]} less {pair[1]}: on time, percentage points"))
        console.print(_differences_table(found, pair, console.width))
    for note in notes(found):
        console.print(Text(note, style="dim"))


def _print_failed(found: Study, console: Console) -> None:
    """Says in a line what the column that had no room would have said, if anything failed."""
    shares = {policy: found.overall(_share_of("failed"), policy) for policy in found.policies}
    told = [f"{policy} {percent(each)}" for policy, each in shares.items() if each and each.mean]
    if told:
        console.print(Text(f"failed %: {', '.join(told)}"))


def _blocks(found: Study, width: int) -> list[tuple[str, Table]]:
    """A title and a table per case, with aligned columns; what does not fit is left out."""
    least = 0 if width >= _WIDE else 1 if width >= _NARROW else _FEW
    for left_out in range(least, _MOST_LEFT_OUT + 1):
        heads, blocks = _told(found, left_out)
        down = zip(heads, *(row for _, rows in blocks for row in rows), strict=True)
        widths = [max(map(len, column)) for column in down]
        # In each line, the box takes a place at either end and one between columns.
        room = width - sum(widths[1:]) - len(widths) - 1
        if room >= min(widths[0], _POLICY_WIDTH):
            break
    roomy = room - 2 * len(widths)
    spaced, tight = _folded(found, roomy), _folded(found, room)
    has_room = left_out < _FEW and roomy >= min(widths[0], _POLICY_WIDTH)
    padding = int(has_room and "".join(spaced).count("\n") <= "".join(tight).count("\n"))
    policies = dict(zip(found.policies, spaced if padding else tight, strict=True))
    lines = [heads[0], *(line for name in policies.values() for line in name.split("\n"))]
    widths[0] = max(map(len, lines))
    for _, rows in blocks:
        for row in rows:
            row[0] = policies[row[0]]
    return [(name, _block(heads, widths, rows, padding)) for name, rows in blocks]


def _folded(found: Study, room: int) -> list[str]:
    return [folded(policy, max(_POLICY_WIDTH, room)) for policy in found.policies]


def folded(name: str, width: int) -> str:
    """Wraps a policy's name to a width, between its parts where possible."""
    lines = [""]
    for part in BETWEEN_PARTS.split(name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines)


def _told(found: Study, left_out: int) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """The headings, and the rows of each case.

    Args:
        found: The runs.
        left_out: 1 leaves out all intervals but that of the on-time share; 2 also the failed share
            and energy; 3 also the late share and p50; 4 all but the shares on time, of the bound
            and refused, accuracy and p99; 5 all but the shares on time and refused, and every
            interval.
    """
    titles = [column.title for column in columns(found)]
    if left_out:
        titles = [title.removesuffix(" %") for title in titles]
    unwanted = ((), (), _NOT_IF_NARROW, _NOT_IF_FULL, _NOT_IF_SMALL, _NOT_IF_TINY)[left_out]
    kept = [i for i, title in enumerate(titles) if title not in unwanted]
    billed = [titles[index] for index in kept if titles[index] in BILLED]
    unit = " · shares in %" if left_out else ""
    unit += f" · {' and '.join(billed)} of a run" if billed else ""
    blocks: list[tuple[str, list[list[str]]]] = []
    for name, case in _shown(found):
        rows = []
        for policy in found.policies:
            row = cells(found, policy, case)
            if left_out:
                bare = int(left_out < _MOST_LEFT_OUT)
                row[bare:] = [cell.split(" ±")[0] for cell in row[bare:]]
            rows.append([policy, *(row[index] for index in kept)])
        blocks.append((f"{name}{unit}", rows))
    return ["policy", *(titles[index] for index in kept)], blocks


def _shown(found: Study) -> list[tuple[str, Case | None]]:
    few = len(found.cases) <= _CASES_ON_TERMINAL
    shown: list[tuple[str, Case | None]] = [
        (f"{case.name} · {_requests(found, case)}", case) for case in found.cases if few
    ]
    if len(found.cases) > 1:
        shown.append((f"mean of {len(found.cases)} cases", None))
    return shown


def _requests(found: Study, case: Case) -> str:
    """How many requests each run played."""
    runs = [run for policy in found.policies for run in found.cells.get((case, policy), ())]
    least, most = min(run.requests for run in runs), max(run.requests for run in runs)
    if least < most:
        return f"{least:,} to {most:,} requests"
    return f"{most:,} request{'s' if most != 1 else ''}"


def _block(
    heads: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]], padding: int
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding))
    for index, (head, width) in enumerate(zip(heads, widths, strict=True)):
        side: Literal["left", "right"] = "right" if index else "left"
        table.add_column(head, justify=side, no_wrap=True, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def compared(found: Study, asked: tuple[str, str] | None) -> tuple[str, str] | None:
    """The two policies to compare, if there are any.

    Raises:
        ValueError: A policy of `asked` has no runs.
    """
    if asked is None:
        if any(run.result.closed for run in found.runs()):
            return None  # they were not asked the same requests
        first_two = tuple(found.policies)
        return (first_two[0], first_two[1]) if len(first_two) == 2 else None
    for policy in asked:
        if policy not in found.policies:
            known = ", ".join(found.policies) or "none"
            raise ValueError(f"no runs of policy '{policy}' to compare (there are: {known})")
    return asked


def _differences_table(found: Study, pair: tuple[str, str], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, int(width >= _TINY)))
    table.add_column("case", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in differences(found, *pair):
        name = each.case.name if each.case else "mean of all"
        seeds = str(each.estimate.count)
        table.add_row(*map(Text, (name, points(each.estimate), seeds, verdict(each))))
    return table
