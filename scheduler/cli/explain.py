"""`laxity explain`: why a request ended as it did."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.cli.box import Url, box
from scheduler.cli.help import COMMAND, examples, given
from scheduler.cli.streams import AsJson, WrongUsage, print_json, say
from scheduler.cli.tables import STYLES, plain_table
from scheduler.core.figures import figure
from scheduler.core.outcomes import Outcome
from scheduler.errors import LaxityError, TaskNotFound

if TYPE_CHECKING:
    from replay.explaining import Brief, Tale

app = typer.Typer(add_completion=False)

OUTCOMES = [outcome.value for outcome in Outcome]


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity explain", "the requests that ended last, with their ids"),
        ("laxity explain --outcome expired --model digits", "some of them"),
        ("laxity explain 4711", "the whole life of one"),
        ("laxity explain 8f2c…", "the state of a durable task"),
        ("laxity explain 4711 --journal old/journal --json", "from a copy, for scripts"),
    ),
)
def explain(
    ctx: typer.Context,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="The request's id, or a durable task's.", show_default=False
        ),
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Without an ID: only those with this outcome.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Without an ID: only those for this model.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, metavar="N", help="Without an ID: how many at most.")
    ] = 20,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The journal.", show_default="the running box's"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="The scheduler's run, as in the files' names; an unknown name lists all runs.",
            show_default="latest",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Tell how a request ended, and why, from the journal of the box that had it.

    Ids count from 1 since the scheduler started; for a request from before a crash or a restart,
    give its run with --run. The newest events are in the journal after 0.2 s.
    """
    _check_options(ctx, request, outcome)
    if request is None:
        _explain_last(journal or _journal_of(url), count, outcome, model, run, as_json)
    elif request.isdecimal():
        _explain_request(journal or _journal_of(url), int(request), run, as_json)
    else:
        _explain_task(request, url, as_json)


def _check_options(ctx: typer.Context, request: str | None, outcome: str | None) -> None:
    if outcome is not None and outcome not in OUTCOMES:
        raise WrongUsage(f"--outcome {outcome!r}: there are {', '.join(OUTCOMES)}")
    named = given(ctx)
    for name, option in named.items():
        if request is not None and name in ("outcome", "model", "count"):
            raise WrongUsage(f"{option} goes without an ID")
        if request is not None and not request.isdecimal() and name in ("journal", "run"):
            raise WrongUsage(f"{option} is for requests, and {request!r} is a durable task's id")
    if named.keys() >= {"journal", "url"}:
        raise WrongUsage("--journal names what to read, so no box is asked: leave --url out")


def _explain_last(
    path: Path, count: int, outcome: str | None, model: str | None, run: str | None, as_json: bool
) -> None:
    briefs = _recent(path, count, outcome, model, run)
    if as_json:
        print_json([asdict(brief) for brief in briefs])
    elif briefs:
        _show_recent(briefs)
    else:
        asked = f" for model {model!r}" if model else ""
        ended = f" that ended{f' {outcome}' if outcome else ''}"
        say(f"the journal has no request{asked}{ended}{_since_when(path, run)}")


def _explain_request(path: Path, request: int, run: str | None, as_json: bool) -> None:
    tale = _tale(path, request, run)
    if as_json:
        print_json(asdict(tale))
    else:
        _show_tale(request, tale)


def _explain_task(task: str, url: str | None, as_json: bool) -> None:
    from scheduler.cli.tasks import show

    try:
        show(task, url, as_json)
    except TaskNotFound as error:
        known = "a request's id is a number, and `laxity explain` lists the last ones"
        raise TaskNotFound(f"{error}; {known}") from None
    if not as_json:
        say("each run of a task is a separate request: list them with laxity explain --model")


def _journal_of(url: str | None) -> Path:
    with box(url) as client:
        journal = client.status().get("journal")
    if journal is None:
        raise LaxityError("the box keeps no journal (journal.enabled); --journal names another one")
    folder = Path(journal["folder"])
    if problem := journal.get("problem"):
        told = f"the journal {folder} can't be written: {problem}"
        if not os.path.exists(folder):
            raise LaxityError(told)
        say(f"{told}; the newest events are not in it")
    if not os.path.isdir(folder):
        raise LaxityError(f"the journal is on the box, in {folder}; copy it, and name --journal")
    return folder


def _recent(
    path: Path, count: int, outcome: str | None, model: str | None, run: str | None
) -> list[Brief]:
    from replay.explaining import recent

    with _reading():
        return recent(path, count, outcome, model, say, run)


def _tale(path: Path, request: int, run: str | None) -> Tale:
    from replay.explaining import explain

    with _reading():
        return explain(path, request, run, say)


def _since_when(path: Path, run: str | None) -> str:
    """For when there is nothing to show: which runs of the scheduler were not looked at."""
    from replay.explaining import earlier_runs

    with _reading():
        others = earlier_runs(path, lambda _: None) if run is None else []
    return f" in the latest run; --run takes an earlier one: {', '.join(others)}" if others else ""


@contextmanager
def _reading() -> Iterator[None]:
    from replay.journal_files import JournalError

    with Console(stderr=True).status("reading the journal"):
        try:
            yield
        except JournalError as error:
            raise LaxityError(str(error)) from None


def _show_recent(briefs: list[Brief]) -> None:
    figures = ("id", "budget ms", "took ms")
    table = plain_table("id", "came", "model", *figures[1:], "outcome", "why", right=figures)
    for brief in briefs:
        table.add_row(
            str(brief.id),
            time.strftime("%H:%M:%S", time.localtime(brief.wall_ns / 1e9)),
            brief.model,
            figure(brief.budget_ns / 1e6),
            figure(brief.total_ns / 1e6),
            Text(brief.outcome, style=STYLES.get(brief.outcome, "")),
            Text(brief.reason),
        )
    Console(highlight=False).print(table)


def _show_tale(request: int, tale: Tale) -> None:
    console = Console(highlight=False)
    title: Any = Text(f"request {request}", style="bold")
    title.append(f"  run {tale.run}", style="not bold dim")
    console.print(title)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(overflow="fold")
    for step in tale.steps:
        after = f"+{step.after_ns / 1e6:.3f} ms"
        table.add_row(after, Text(step.what, style=STYLES.get(step.what, "bold")), Text(step.text))
    console.print(table)
    if tale.brief is None:
        console.print("it has not ended, as far as the journal goes", style="yellow")
