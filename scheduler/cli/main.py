"""`laxity`: the command-line client of a box, for people and scripts.

Results go to stdout, everything else to stderr. Exit status: 0, success; 1, the box refused, failed
or is not there, or a check found something wrong; 2, the command line is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from scheduler.cli.help import COMMANDS, TwoWordCommands, examples
from scheduler.cli.streams import open_streams, tell, written
from scheduler.errors import LaxityError

_MODULES: dict[str, tuple[str, str | None]] = {
    "demo": ("demo", None),
    "status": ("status", None),
    "models": ("models", None),
    "infer": ("infer", None),
    "cloud": ("cloud", "A cloud tier of your own, on Ray Serve."),
    "config": ("config", "Check a configuration, or print its schema."),
    "doctor": ("doctor", None),
    "optimize": ("optimize", None),
    "explain": ("explain", None),
    "policy": ("policy", "Try a scheduling policy of your own."),
    "profile": ("profile", None),
    "replay": ("replay", None),
    "replay link": ("link", None),
    "task": ("tasks", "Durable tasks: list, show, fetch, cancel."),
    "token": ("token", None),
    "pull": ("pull", None),
    "top": ("top", None),
}
"""The module of each command, in the order of the help; one with a text has subcommands."""


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """The command, or only the part that a command line needs: all of it imports twice as slowly.

    Args:
        words: The command line; all commands are included unless it begins with one.
    """
    app = typer.Typer(
        **{**COMMANDS, "cls": TwoWordCommands},
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        epilog=examples(
            ("laxity demo", "all of it in about a minute"),
            ("edge_agent --config edge.yaml", "a box that serves"),
            ("laxity status --watch", "its state"),
            ("laxity infer --help", "examples for each command"),
        ),
    )
    app.callback(invoke_without_command=True)(_laxity)
    for name in _wanted(words):
        module, about = _MODULES[name]
        commands = import_module(f"scheduler.cli.{module}").app
        app.add_typer(commands, name=name if about else None, help=about)
    return app


def _wanted(words: Sequence[str]) -> list[str]:
    if list(words) == ["--version"]:
        return []
    return [name for name in _MODULES if name.split()[0] in words[:1]] or list(_MODULES)


def _laxity(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version, and stop.")
    ] = False,
) -> None:
    """Inference with deadlines, on the hardware of this box.

    Exit status: 0 for success; 1 if the box refused, failed or can't be reached, or if a check
    found an error; 2 if the command line is wrong. Errors go to stderr; a command with --json
    prints them as an object: {"error": …, "code": …}.
    """
    if show_version:
        print(f"laxity {version('laxity')}")
        raise typer.Exit


def main() -> None:
    """The entry point of the command."""
    open_streams()
    try:
        with written():
            command_line(sys.argv[1:])()
    except LaxityError as error:
        sys.exit(tell(error))
