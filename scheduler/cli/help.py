"""The help of commands, with examples to copy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.cells import cell_len
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from scheduler.cli.streams import WrongUsage, tell
from scheduler.errors import LaxityError

_UsageError: Any = typer.BadParameter.__base__
"""Click's; Typer has a copy of its own in newer versions, and exports it in none."""

_INPUT = re.compile(r"Input (should be .*?)(?:, unable to parse .*)?")
"""What Typer says of a value that has the wrong type, without the value."""

_WIDTH = 76
"""Width of an 80-column terminal, less the margins of an epilog."""


def examples(*pairs: tuple[str, str]) -> str:
    """An epilog of command lines, each with its purpose."""
    column = max(cell_len(command) for command, _ in pairs) + 2
    lines = ["[bold]Examples[/bold]"]
    for command, purpose in pairs:
        if not purpose:
            lines.append(escape(command))
        elif column + cell_len(purpose) + 2 <= _WIDTH:
            gap = " " * (column - cell_len(command))
            lines.append(f"{escape(command)}{gap}[dim]# {escape(purpose)}[/dim]")
        else:
            lines += [f"[dim]# {escape(purpose)}[/dim]", escape(command)]
    return "\n".join(lines)


def given(ctx: typer.Context) -> dict[str, str]:
    """The options and arguments given on the command line, as users write them.

    Returns:
        The spelling of each option or argument, by the name of its parameter.
    """
    return {
        each.name: max(each.opts, key=len)
        for each in ctx.command.params
        if each.name and _source(ctx, each.name) == "COMMANDLINE"
    }


def _source(ctx: typer.Context, name: str) -> str:
    source = ctx.get_parameter_source(name)
    return source.name if source else ""


class _Flags:
    """Hides the type of options that take no value: `--json <bool>` would suggest one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As in click, but flags have no metavar."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return params


class _Paragraphs:
    """Help whose paragraphs are rewrapped; Typer would break lines as the source does."""

    help: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As in Typer, with each paragraph wrapped to the width of the terminal."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Errors:
    """Reports errors as JSON where the command line says `--json`."""

    def make_context(self, info_name: Any, args: list[str], *more: Any, **extra: Any) -> Any:
        """As in click, which parses the arguments here."""
        with _told(self._wants_json(args)):
            return super().make_context(info_name, args, *more, **extra)  # type: ignore[misc]

    def _wants_json(self, args: Iterable[str]) -> bool:
        own: Any = self
        names_file = any("--json" in each.opts and not each.is_flag for each in own.params)
        return "--json" in args and not names_file


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    try:
        yield
    except (LaxityError, _UsageError) as error:
        if not as_json:
            raise
        known = error if isinstance(error, LaxityError) else WrongUsage(error.format_message())
        raise typer.Exit(tell(known, as_json=True)) from None


class _Command(_Errors, _Flags, _Paragraphs, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in click, but refuses empty values: `--fleet "$FLEET"` with the variable unset."""
        found, *_ = self.make_parser(ctx).parse_args(args=list(args))
        for each in self.get_params(ctx):
            value = found.get(each.name)
            if value == "" or (isinstance(value, (list, tuple)) and "" in value):
                raise typer.BadParameter("it is empty", ctx=ctx, param=each)
        try:
            left: list[str] = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            value = found.get(error.param.name) if error.param and error.param.name else None
            wrong = _INPUT.fullmatch(error.message)
            if wrong and isinstance(value, str):
                error.message = f"it {wrong[1]}, not {value!r}"
            raise
        return left

    def invoke(self, ctx: Any) -> Any:
        """As in click."""
        with _told(bool(ctx.params.get("as_json"))):
            return super().invoke(ctx)


class _Group(_Errors, _Flags, _Paragraphs, TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in click."""
        with _told(self._wants_json(args)):
            return super().resolve_command(ctx, args)


class TwoWordCommands(_Group):
    """Allows a command of two words beside one that is its first word and takes arguments."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in click, but tries two words first."""
        name = " ".join(args[:2])
        if name in self.commands:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)


_SETTINGS = {"help_option_names": ["-h", "--help"]}

COMMAND: dict[str, Any] = {"cls": _Command, "context_settings": _SETTINGS}
"""Settings of every command."""

COMMANDS: dict[str, Any] = {"cls": _Group, "context_settings": _SETTINGS, "no_args_is_help": True}
"""Settings of every group of commands."""
