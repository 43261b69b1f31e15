"""What `laxity replay` makes of what was played: the files that were asked for, and a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from scheduler.cli.places import STDOUT
from scheduler.cli.streams import say

if TYPE_CHECKING:
    from replay.results import RunResult


@dataclass(frozen=True, slots=True)
class Files:
    """Where what was played is to be kept; None is nowhere.

    Attributes:
        json: The rows; `STDOUT` prints them, and the table on stderr.
        full: All that is known.
        report: The page.
        chart: What is on time over the loads.
    """

    json: Path | None
    full: Path | None
    report: Path | None
    chart: Path | None


def give(results: list[RunResult], pair: tuple[str, str] | None, files: Files) -> None:
    """Writes the files, then prints the table: who reads it may go away, and has the files.

    Raises:
        typer.Exit: A file can't be written, as was said; all else is there.
    """
    from replay.report import print_table

    unwritten = list(_written(results, pair, files))
    for problem in unwritten:
        say(problem)
    print_table(results, Console(stderr=files.json == STDOUT), pair)
    if unwritten:
        raise typer.Exit(2)


def _written(results: list[RunResult], pair: tuple[str, str] | None, files: Files) -> Iterator[str]:
    """Writes each file, whatever becomes of the others; what can't be written."""
    from replay.report import summary, write_chart, write_report
    from replay.results import write_results

    def write_rows(path: Path) -> None:
        rows = json.dumps(summary(results), indent=1)
        if path == STDOUT:
            print(rows)
        else:
            path.write_text(f"{rows}\n")

    wanted: list[tuple[Path | None, str, Callable[[Path], None]]] = [
        (files.json, "", write_rows),
        (files.full, "", lambda path: write_results(results, path)),
        (files.report, "report", lambda path: write_report(results, path, compare=pair)),
        (files.chart, "chart", lambda path: write_chart(results, path)),
    ]
    for path, name, write in wanted:
        if path is None:
            continue
        try:
            write(path)
        except OSError as error:
            yield f"{path} can't be written: {error.strerror}"
        except ValueError as error:
            yield f"{path} is not written: {error}"
        else:
            if name:
                say(f"the {name} is in {path}")
