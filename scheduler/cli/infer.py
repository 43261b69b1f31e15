"""`laxity infer`: one request, or a few in a row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scheduler.cli.box import SHOWN_VALUES, Output, Top, Url, box
from scheduler.cli.help import COMMAND, examples, given
from scheduler.cli.infer_view import Ended, report, save, show, why
from scheduler.cli.inputs import Prepared, load_inputs, parse_source
from scheduler.cli.models import model_called
from scheduler.cli.places import check_places
from scheduler.cli.streams import AsJson, WrongUsage, print_json, say
from scheduler.client.arguments import MAX_DEADLINE_MS, MAX_TASK_MS, checked_deadline_ms
from scheduler.client.sync_client import Client
from scheduler.core.requests import DEFAULT_PRIORITY, LOWEST_PRIORITY
from scheduler.errors import InvalidInput, RequestEnded
from scheduler.result import Result

app = typer.Typer(add_completion=False)

_DEADLINE_MS = 100.0
_DURABLE_DEADLINE_MS = 3_600_000.0

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]PATH",
        help="An .npy, .npz, picture or .txt file (its lines), for each input of the model; "
        "PATH.npz:ARRAY\\[ITEM] picks from within.",
    ),
]
DeadlineMs = Annotated[
    float | None,
    typer.Option(
        metavar="MS",
        help="Time from now until the result must be here.",
        show_default="100; with --durable an hour",
    ),
]
Durable = Annotated[
    bool, typer.Option("--durable", help="Keep it on the box's disk, and print its id at once.")
]
Variant = Annotated[
    str | None, typer.Option(help="The variant that must run.", show_default="the policy chooses")
]
Priority = Annotated[
    int, typer.Option(min=0, max=LOWEST_PRIORITY, metavar="N", help="0 goes first.")
]
AcceptLate = Annotated[
    bool, typer.Option("--accept-late", help="Accept a result after the deadline too.")
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Only a result for exactly this input, not a shrunk or a similar one."
    ),
]
Levels = Annotated[
    str | None,
    typer.Option(
        metavar="BLACK:WHITE",
        help="The values of black and white in a picture.",
        show_default="0:1 for floats, else 0:255",
    ),
]


@app.command(
    **COMMAND,
    epilog=examples(
        (
            "laxity infer digits --input scan.png --levels 16:0",
            "dark ink on white paper, for a model that takes ink from 0 to 16",
        ),
        (
            "laxity infer digits --input 'scans.npz:images[7]' --repeat 20",
            "one item of an archive, twenty times",
        ),
        (
            "laxity infer digits --input scan.npy --deadline-ms 30 --variant small",
            "a tight deadline",
        ),
        ("laxity infer pair -i left=a.npy -i right=b.npy --output out.npz", "two inputs"),
        (
            "laxity infer digits -i scan.npy --durable",
            "work for later; `laxity task result ID` fetches it",
        ),
    ),
)
def infer(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="The model's name; `laxity models` lists them.")],
    input_: Inputs,
    deadline_ms: DeadlineMs = None,
    variant: Variant = None,
    priority: Priority = DEFAULT_PRIORITY,
    accept_late: AcceptLate = False,
    exact: Exact = False,
    durable: Durable = False,
    levels: Levels = None,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Send it N times in a row, or until Ctrl-C.")
    ] = 1,
    top: Top = SHOWN_VALUES,
    output: Output = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send one request, and see the result and where its time went."""
    if durable and (idle := {"top", "output"} & given(ctx).keys()):
        raise WrongUsage(f"--{idle.pop()} is of a result: it goes with `laxity task result ID`")
    if durable and accept_late:
        raise WrongUsage("--accept-late goes without --durable: a task that is late has expired")
    check_places(output, read=[str(parse_source(text).path) for text in input_])
    black_white = _read_levels(levels)
    if deadline_ms is None:
        deadline_ms = _DURABLE_DEADLINE_MS if durable else _DEADLINE_MS
    _check_deadline(deadline_ms, durable)
    with box(url) as client:
        found = client.models()
        inputs = load_inputs(input_, model_called(model, found)["inputs"], black_white)
        options: dict[str, Any] = {
            "deadline_ms": deadline_ms,
            "variant": variant,
            "priority": priority,
            "accept_late": accept_late,
            "exact": exact,
        }
        if durable:
            _keep(client, model, inputs, repeat, options, as_json)
            return
        ended = _run(client, model, inputs, repeat, options)
    try:
        _save_last(ended, output)  # before printing, whose reader may go away
    finally:
        if as_json:
            print_json(report(model, inputs, ended, deadline_ms, top))
        else:
            show(Console(highlight=False), model, inputs, ended, deadline_ms, top)
    _finish_infer(ended, repeat)


def _save_last(ended: list[Ended], output: Path | None) -> None:
    results = [one.result for one in ended if one.result is not None]
    if output is not None and results:
        save(output, results[-1].outputs)
        say(f"saved {', '.join(results[-1].outputs)} of the last result to {output}")


def _finish_infer(ended: list[Ended], repeat: int) -> None:
    errors = [one.error for one in ended if one.error is not None]
    if errors:
        some = f"{len(errors)} of {len(ended)} without a result; the first: "
        say((some if len(ended) > 1 else "") + why(errors[0]))
    if len(ended) < repeat:
        say(f"interrupted after {len(ended)} of {repeat}")
        raise KeyboardInterrupt
    if errors:
        raise typer.Exit(1)


def _run(
    client: Client, model: str, inputs: Mapping[str, Prepared], repeat: int, options: dict[str, Any]
) -> list[Ended]:
    """Sends the request `repeat` times, one after the other, or until Ctrl-C.

    Raises:
        LaxityError: An error that would end every request, such as wrong input or a lost token.
        KeyboardInterrupt: Ctrl-C came before any request had ended.
    """
    ended: list[Ended] = []
    try:
        for one in _one_after_another(client, model, inputs, options):
            ended.append(one)
            if len(ended) == repeat:
                break
    except KeyboardInterrupt:
        if not ended:
            raise
    return ended


def _one_after_another(
    client: Client, model: str, inputs: Mapping[str, Prepared], options: dict[str, Any]
) -> Iterator[Ended]:
    arrays = {name: prepared.array for name, prepared in inputs.items()}
    while True:
        start_ns = time.perf_counter_ns()
        result: Result | None = None
        error: Exception | None = None
        try:
            result = client.infer(model, arrays, **options)
        except (RequestEnded, CancelledError) as problem:
            error = problem
        yield Ended((time.perf_counter_ns() - start_ns) / 1e6, result, error)


def _check_deadline(deadline_ms: float, durable: bool) -> None:
    """Checks, before anything is read or sent, that a request can have this deadline.

    Raises:
        WrongUsage: It can't; the message says what is accepted.
    """
    try:
        most_ms = MAX_TASK_MS if durable else MAX_DEADLINE_MS
        checked_deadline_ms(deadline_ms, "--deadline-ms", most_ms)
    except InvalidInput as problem:
        raise WrongUsage(str(problem)) from None


def _read_levels(text: str | None) -> tuple[float, float] | None:
    """Parses the values for black and white.

    Raises:
        WrongUsage: They are not two different finite numbers.
    """
    if text is None:
        return None
    try:
        black, white = map(float, text.split(":"))
    except ValueError:
        black = white = 0.0
    if not isfinite(white - black) or black == white:
        raise WrongUsage(f"--levels is BLACK:WHITE, such as 0:1 or 255:0, not {text!r}")
    return black, white


def _keep(
    client: Client,
    model: str,
    inputs: Mapping[str, Prepared],
    repeat: int,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Submits durable tasks, and prints the ids of accepted ones even if a later one fails.

    Raises:
        LaxityError: A task was refused.
    """
    arrays = {name: prepared.array for name, prepared in inputs.items()}
    ids: list[str] = []
    try:
        for _ in range(repeat):
            ids.append(client.submit(model, arrays, durable=True, **options).id)
            if not as_json:
                print(ids[-1], flush=True)
    finally:
        if as_json and ids:
            print_json({"tasks": ids})
