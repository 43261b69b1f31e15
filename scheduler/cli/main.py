"""`laxity`: the command for people and scripts in front of a box.

Results go to stdout, all else to stderr. Exit status: 0, it worked; 1, the box refused, failed or
is not there, or what was checked is wrong; 2, the command line is wrong.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from scheduler.address import AddressError
from scheduler.cli import (
    cloud,
    config,
    demo,
    doctor,
    explain,
    infer,
    link,
    models,
    optimize,
    policy,
    profile,
    pull,
    replay,
    status,
    tasks,
    token,
    top,
)
from scheduler.cli.help import COMMANDS, TwoWordCommands, examples
from scheduler.cli.inputs import InputProblem
from scheduler.cli.streams import open_streams, say, written
from scheduler.errors import LaxityError

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


app.add_typer(demo.app)
app.add_typer(status.app)
app.add_typer(models.app)
app.add_typer(infer.app)
app.add_typer(cloud.app, name="cloud", help="A cloud tier of one's own, on Ray Serve.")
app.add_typer(config.app, name="config", help="Check a configuration, or print its schema.")
app.add_typer(doctor.app)
app.add_typer(optimize.app)
app.add_typer(explain.app)
app.add_typer(policy.app, name="policy")
app.add_typer(profile.app)
app.add_typer(replay.app)
app.add_typer(link.app)
app.add_typer(tasks.app, name="task", help="Durable tasks: list, show, fetch, cancel.")
app.add_typer(token.app)
app.add_typer(pull.app)
app.add_typer(top.app)


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
