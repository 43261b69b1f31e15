"""`laxity doctor`: finds problems in a box's environment, and says how to fix them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import AsJson, WrongUsage, print_json
from scheduler.config.box import load_config
from scheduler.config.problems import ConfigError
from scheduler.doctor.findings import Finding

app = typer.Typer(add_completion=False)

_STYLES = {"good": "green", "warning": "yellow", "error": "bold red"}


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity doctor", "the installation"),
        (
            "laxity doctor --config edge.yaml",
            "and its models, folders, ports, boxes and clouds",
        ),
        ("laxity doctor --json", "for scripts"),
    ),
)
def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The box's configuration."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for problems in a box's environment; exit status 1 if there is an error."""
    from scheduler.doctor.checks import examine  # slow to import: what it examines

    try:
        settings = load_config(config)
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    findings = list(examine(settings, config))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        console = Console(highlight=False)
        console.print(_table(findings))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table.grid("", "", Column(overflow="fold"), padding=(0, 2, 0, 0))
    for finding in findings:
        style = _STYLES[finding.level]
        table.add_row(Text(finding.level, style), finding.check, Text(finding.message))
        if finding.remedy:
            table.add_row("", "", Text(finding.remedy, "dim"))
    return table
