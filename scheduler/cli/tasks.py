"""`laxity task`: durable tasks by their id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from scheduler.cli.box import SHOWN_VALUES, Output, Top, Url, box
from scheduler.cli.help import COMMAND, COMMANDS, examples
from scheduler.cli.infer_view import described_outputs, save
from scheduler.cli.places import check_places
from scheduler.cli.streams import AsJson, print_json
from scheduler.cli.tables import duration, outputs_view, plain_table
from scheduler.client.sync_client import Client
from scheduler.client.tasks import TaskStatus
from scheduler.errors import LaxityError
from scheduler.result import Result

app = typer.Typer(**COMMANDS)

TaskId = Annotated[str, typer.Argument(help="As `laxity infer --durable` printed it.")]


@app.command(
    "list",
    **COMMAND,
    epilog=examples(
        ("laxity task list", "the newest, and how many there are"),
        ("laxity task list --count 0 --json | jq .counts", "for scripts"),
    ),
)
def list_(
    count: Annotated[int, typer.Option(min=0, max=250, metavar="N", help="How many at most.")] = 20,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Those submitted before this one.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of this caller, the newest first."""
    with box(url) as client:
        found = client.tasks(count, before)
    if as_json:
        print_json({**found, "tasks": [asdict(status) for status in found["tasks"]]})
        return
    console = Console()
    if found["problem"] is not None:
        console.print(found["problem"], style="red", markup=False)
    counts = ", ".join(f"{number} {how}" for how, number in found["counts"].items())
    console.print(counts or "no tasks", markup=False)
    if found["tasks"]:
        console.print(_table(found["tasks"]))


def _table(tasks: list[TaskStatus]) -> Table:
    table = plain_table("task", "model", "state", "failures", "deadline", right=("failures",))
    table.columns[0].no_wrap = True  # a folded id could not be copied
    for status in tasks:
        state = status.outcome or status.state
        table.add_row(status.id, status.model, state, str(status.attempts), _deadline(status))
    return table


def _deadline(status: TaskStatus) -> str:
    return f"in {duration(status.left_s)}" if status.left_s > 0 else "passed"


def _facts(status: TaskStatus) -> dict[str, Any]:
    """The facts about a task, in the terms of the list; times are in this machine's time zone."""
    ended_s = status.ended_unix_s
    return {
        "task": status.id,
        "model": status.model,
        "variant": status.variant or "any",
        "state": status.outcome or status.state,
        "reason": status.reason,
        "failures": status.attempts,
        "priority": status.priority,
        "deadline": _deadline(status),
        "submitted": _clock(status.submitted_unix_s),
        "ended": "" if ended_s is None else _clock(ended_s),
    }


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


@app.command(**COMMAND, epilog=examples(("laxity task show 8f2c…", "the state of one")))
def show(task: TaskId, url: Url = None, as_json: AsJson = False) -> None:
    """Show the state of a task."""
    with box(url) as client:
        status = client.task(task).status()
    if as_json:
        print_json(asdict(status))
    else:
        for key, value in _facts(status).items():
            print(f"{key:<10} {value}".rstrip())


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity task result 8f2c…", "as soon as it is there"),
        ("laxity task result 8f2c… --wait 0 -o out.npz", "now or never, into a file"),
    ),
)
def result(
    task: TaskId,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="How long to wait.", show_default="as long as it takes"
        ),
    ] = None,
    top: Top = SHOWN_VALUES,
    output: Output = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the result of a task; exit status 1 if there is none."""
    check_places(output)
    with box(url) as client:
        found = _result(client, task, wait)
    if output is not None:
        save(output, found.outputs)
    if as_json:
        print_json(_described(task, found, top))
        return
    console = Console(highlight=False)
    console.print(f"{found.outcome.value} on {found.target} ({found.runtime})", markup=False)
    for part in outputs_view(found.outputs, top):
        console.print(part)


def _result(client: Client, task: str, wait_s: float | None) -> Result:
    try:
        return client.task(task).result(wait_s)
    except (TimeoutError, CancelledError) as error:
        raise LaxityError(str(error)) from None


def _described(task: str, found: Result, top: int) -> Mapping[str, Any]:
    return {
        "task": task,
        "outcome": found.outcome.value,
        "target": found.target,
        "variant": found.variant,
        "runtime": found.runtime,
        "outputs": described_outputs(found.outputs, top),
    }


@app.command(**COMMAND, epilog=examples(("laxity task cancel 8f2c…", "if it still waits")))
def cancel(task: TaskId, url: Url = None, as_json: AsJson = False) -> None:
    """Cancel a task that has not ended."""
    with box(url) as client:
        cancelled = client.task(task).cancel()
    if as_json:
        print_json({"task": task, "cancelled": cancelled})
    else:
        print(f"{task} {'is cancelled' if cancelled else 'had already ended'}")


@app.command(
    **COMMAND, epilog=examples(("laxity task forget 8f2c…", "once its result is safe elsewhere"))
)
def forget(task: TaskId, url: Url = None, as_json: AsJson = False) -> None:
    """Remove a task and its result from the box; one that has not ended is cancelled."""
    with box(url) as client:
        forgotten = client.task(task).forget()
    if as_json:
        print_json({"task": task, "forgotten": forgotten})
    else:
        print(f"{task} {'is forgotten' if forgotten else 'is not known there'}")
