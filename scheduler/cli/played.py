"""Output of `laxity replay`: the requested files, and a table."""

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
from scheduler.files import write_output

if TYPE_CHECKING:
    from replay.results import RunResult


@dataclass(frozen=True, slots=True)
class Files:
    """The files to write; None for those not wanted.

    Attributes:
        json: The rows of the table; `STDOUT` prints them, and moves the table to stderr.
        full: The full results.
        report: The report.
        chart: The chart of requests on time over load.
    """

    json: Path | None
    full: Path | None
    report: Path | None
    chart: Path | None


def give(results: list[RunResult], pair: tuple[str, str] | None, files: Files) -> None:
    """Writes the files, then prints, because the reader of stdout may go away.

    Raises:
        typer.Exit: A file could not be written, which was reported; all others were.
    """
    from replay.report import print_table

    unwritten = list(_written(results, pair, files))
    for problem in unwritten:
        say(problem)
    print_table(results, Console(stderr=files.json == STDOUT), pair)
    if files.json == STDOUT:
        print(_rows(results))
    if unwritten:
        raise typer.Exit(2)


def _rows(results: list[RunResult]) -> str:
    from replay.report import summary

    return json.dumps(summary(results), indent=1)


def _written(results: list[RunResult], pair: tuple[str, str] | None, files: Files) -> Iterator[str]:
    """Writes each file even if others fail; yields a message for each that can't be written."""
    from replay.report import write_chart, write_report
    from replay.results import write_results

    def write_rows(path: Path) -> None:
        write_output(path, f"{_rows(results)}\n")

    wanted: list[tuple[Path | None, str, Callable[[Path], None]]] = [
        (None if files.json == STDOUT else files.json, "", write_rows),
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
