"""How the help of every command reads on a terminal of 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from edge_agent.main import app as edge_agent
from scheduler.cli.main import command_line

COLUMNS = 80


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, each in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", each)


ALL = {
    name: (app, command)
    for program, app in (("laxity", command_line()), ("edge_agent", edge_agent))
    for name, command in commands(program, typer.main.get_command(app))
}


def help_of(name: str) -> list[str]:
    ended = CliRunner().invoke(ALL[name][0], [*name.split()[1:], "--help"], env={"COLUMNS": "80"})
    assert ended.exit_code == 0
    return [line.rstrip() for line in ended.output.splitlines()]


@pytest.mark.parametrize("name", ALL)
def test_a_line_ends_only_where_the_next_word_would_not_fit(name: str) -> None:
    lines = help_of(name)
    prose = lines[: next(i for i, line in enumerate(lines) if line.startswith("╭"))]
    for line, following in pairwise(prose):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > COLUMNS - 1, line


@pytest.mark.parametrize("name", ALL)
def test_examples_can_be_copied_line_by_line(name: str) -> None:
    epilog = ALL[name][1].epilog or ""
    shown = help_of(name)
    for line in Text.from_markup(epilog).plain.splitlines():
        assert f" {line}" in shown


@pytest.mark.parametrize("name", ALL)
def test_five_words_about_an_option_stand_on_one_line(name: str) -> None:
    assert any("Show this message and exit." in line for line in help_of(name))


@pytest.mark.parametrize("name", ALL)
def test_an_option_that_takes_no_value_shows_none(name: str) -> None:
    lines = help_of(name)
    assert not [line for line in lines if "<bool>" in line]
    assert any(re.match(r"│ +--help( +-h)? +Show this", line) for line in lines)


@pytest.mark.parametrize(
    ("words", "others"),
    [(["--version"], []), (["task", "list"], ["tasks"]), (["replay", "x"], ["link", "replay"])],
)
def test_no_command_waits_for_the_others(words: list[str], others: list[str]) -> None:
    code = (
        "import sys; from scheduler.cli import main; main.command_line(sys.argv[1:]); "
        "print(*sorted({'tasks', 'link', 'replay', 'doctor', 'status'}"
        " & {name.rpartition('.')[2] for name in sys.modules if name[:13] == 'scheduler.cli'}))"
    )
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert ended.stdout.split() == others, ended.stderr
