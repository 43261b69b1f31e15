"""`laxity`: the command for people and scripts in front of a box.

Results go to stdout, all else to stderr. Exit status: 0, it worked; 1, the box refused, failed or
is not there, or what was checked is wrong; 2, the command line is wrong.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scheduler import (
    cli_cloud,
    cli_config,
    cli_doctor,
    cli_explain,
    cli_infer,
    cli_link,
    cli_optimize,
    cli_policy,
    cli_profile,
    cli_pull,
    cli_replay,
    cli_tasks,
    cli_token,
    cli_top,
)
from scheduler.address import AddressError
from scheduler.call import DEFAULT_PRIORITY, LOWEST_PRIORITY
from scheduler.cli_box import SHOWN_VALUES, AsJson, Output, Top, Url, box, print_json, screen
from scheduler.cli_help import COMMAND, COMMANDS, TwoWordCommands, examples, given
from scheduler.cli_inputs import InputProblem, check_places, load_inputs
from scheduler.cli_status import status_view
from scheduler.cli_streams import open_streams, say, written
from scheduler.cli_tables import models_view
from scheduler.client import Client
from scheduler.core.names import did_you_mean
from scheduler.errors import LaxityError, ModelNotFound

DEADLINE_MS = 100.0
DURABLE_DEADLINE_MS = 3_600_000.0

app = typer.Typer(
    **{**COMMANDS, "cls": TwoWordCommands},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=examples(
        ("laxity demo", "all of it in about a minute"),
        ("edge_agent --config edge.yaml", "a box that serves"),
        ("laxity status --watch", "how it is"),
        ("laxity infer --help", "examples for each command"),
    ),
)


def _policy_trial() -> Any:
    from replay import policy_trial

    return policy_trial


app.add_typer(cli_cloud.app, name="cloud", help="A cloud tier of one's own, on Ray Serve.")
app.add_typer(cli_config.app, name="config", help="Check a configuration, or print its schema.")
app.add_typer(cli_doctor.app)
app.add_typer(cli_optimize.app)
app.add_typer(cli_explain.app)
app.add_typer(cli_policy.policy_app(_policy_trial), name="policy")
app.add_typer(cli_profile.app)
app.add_typer(cli_replay.replay_app)
app.add_typer(cli_link.app)
app.add_typer(cli_tasks.app, name="task", help="Durable tasks: list, show, fetch, cancel.")
app.add_typer(cli_token.app)
app.add_typer(cli_pull.app)
app.add_typer(cli_top.app)


@app.callback(invoke_without_command=True)
def _laxity(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version, and stop.")
    ] = False,
) -> None:
    """Inference with deadlines, on the hardware of this box."""
    if show_version:
        print(f"laxity {version('laxity')}")
        raise typer.Exit


# -- demo


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity demo", "70 % load, 200 % load, a killed worker"),
        ("laxity demo --json figures.json", "and keep the figures"),
        ("laxity demo --seconds-per-phase 20", "a longer look"),
    ),
)
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")
    ] = None,
    seconds_per_phase: Annotated[
        float, typer.Option(min=1.0, max=600.0, metavar="S", help="How long each phase plays.")
    ] = 11.0,
    cameras: Annotated[
        int, typer.Option(min=1, max=200, metavar="N", help="How many cameras send scans.")
    ] = 8,
    seed: Annotated[int, typer.Option(help="Chance of the cameras: same seed, same scans.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with configuration, log and profile.")
    ] = False,
) -> None:
    """Start a box of its own, overload it, kill its worker, and show what became of deadlines."""
    from replay.demo import Demo

    check_places(json_file)
    raise typer.Exit(Demo(seconds_per_phase, cameras, seed, json_file, keep).run())


# -- status


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity status", "targets, queues, outcomes"),
        ("laxity status --watch", "again every second, with rates"),
        ("laxity status --json | jq .outcomes", "for scripts"),
        ("laxity status --url tcp://10.0.0.7:8702", "another box"),
    ),
)
def status(
    ctx: typer.Context,
    url: Url = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds between looks, with --watch.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """How a box is: its targets, its queues, and how requests ended."""
    if not watch and "interval" in given(ctx):
        raise InputProblem("--interval goes with --watch")
    with box(url) as client:
        if watch:
            _watch(client, interval, as_json)
        elif as_json:
            print_json(client.status())
        else:
            Console().print(status_view(client.status()))


def _watch(client: Client, interval: float, as_json: bool) -> None:
    try:
        if as_json:
            while True:
                print(json.dumps(client.status()), flush=True)
                time.sleep(interval)
        with screen(Console()) as show:
            before: Mapping[str, Any] | None = None
            while True:
                now = client.status()
                show(status_view(now, before and _rates(before, now)))
                before = now
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _rates(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    seconds = now["uptime_s"] - before["uptime_s"]
    if seconds <= 0:  # The scheduler was restarted meanwhile.
        return {}
    counts = before["outcomes"]
    return {name: (n - counts.get(name, 0)) / seconds for name, n in now["outcomes"].items()}


# -- models


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity models", "all of them"),
        ("laxity models digits", "one of them"),
        ("laxity models --json | jq '.models[].name'", "for scripts"),
    ),
)
def models(
    name: Annotated[str | None, typer.Argument(help="Only this model.", show_default=False)] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """What a box can run: inputs, outputs, variants, and how long they take where."""
    with box(url) as client:
        found = client.models()
    listed, problems = found["models"], found["problems"]
    if name is not None:
        listed = [_model_called(name, listed)]
        problems = [p for p in problems if p["model"].partition("/")[0] == name]
    if as_json:
        print_json({"models": listed, "problems": problems})
    else:
        Console().print(models_view(listed, problems))


def _model_called(name: str, listed: list[dict[str, Any]]) -> dict[str, Any]:
    by_name = {model["name"]: model for model in listed}
    if name not in by_name:
        meant = did_you_mean(name, by_name, f"there are: {', '.join(by_name) or 'none yet'}")
        raise ModelNotFound.unknown(name, f" ({meant})")
    return by_name[name]


# -- infer

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
        help="When the result must be here, from now.",
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
    bool, typer.Option("--accept-late", help="Take a result after the deadline too.")
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Only a result of this very input: not shrunk for a slow link, nor near it."
    ),
]
Levels = Annotated[
    str | None,
    typer.Option(
        metavar="BLACK:WHITE",
        help="What the black and white of a picture become.",
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
        raise InputProblem(f"--{idle.pop()} is of a result: it goes with `laxity task result ID`")
    if durable and accept_late:
        raise InputProblem("--accept-late goes without --durable: a task that is late has expired")
    check_places(output)
    black_white = cli_infer.read_levels(levels)
    if deadline_ms is None:
        deadline_ms = DURABLE_DEADLINE_MS if durable else DEADLINE_MS
    cli_infer.check_deadline(deadline_ms, durable)
    with box(url) as client:
        listed = client.models()["models"]
        inputs = load_inputs(input_, _model_called(model, listed)["inputs"], black_white)
        options: dict[str, Any] = {
            "deadline_ms": deadline_ms,
            "variant": variant,
            "priority": priority,
            "accept_late": accept_late,
            "exact": exact,
        }
        if durable:
            cli_infer.keep(client, model, inputs, repeat, options, as_json)
            return
        ended = cli_infer.run(client, model, inputs, repeat, options)
    try:
        _save_last(ended, output)  # who reads what is printed may go away
    finally:
        if as_json:
            print_json(cli_infer.report(model, inputs, ended, deadline_ms, top))
        else:
            cli_infer.show(Console(highlight=False), model, inputs, ended, deadline_ms, top)
    _finish_infer(ended, repeat)


def _save_last(ended: list[cli_infer.Ended], output: Path | None) -> None:
    results = [one.result for one in ended if one.result is not None]
    if output is not None and results:
        cli_infer.save(output, results[-1].outputs)
        say(f"saved {', '.join(results[-1].outputs)} of the last result to {output}")


def _finish_infer(ended: list[cli_infer.Ended], repeat: int) -> None:
    errors = [one.error for one in ended if one.error is not None]
    if errors:
        some = f"{len(errors)} of {len(ended)} without a result; the first: "
        say((some if len(ended) > 1 else "") + cli_infer.why(errors[0]))
    if len(ended) < repeat:
        say(f"interrupted after {len(ended)} of {repeat}")
        raise KeyboardInterrupt
    if errors:
        raise typer.Exit(1)


# -- all of them


def main() -> None:
    """The entry point of the command."""
    open_streams()
    try:
        with written():
            app()
    except (InputProblem, AddressError) as problem:
        say(str(problem))
        sys.exit(2)
    except LaxityError as error:
        say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
