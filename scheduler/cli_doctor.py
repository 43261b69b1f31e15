"""`laxity doctor`: what may be wrong around a box, and what would be right."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scheduler.cli_help import SETTINGS, examples
from scheduler.config import load_config
from scheduler.doctor import Finding, examine

app = typer.Typer(add_completion=False)

_STYLES = {"good": "green", "warning": "yellow", "error": "bold red"}


@app.command(
    context_settings=SETTINGS,
    epilog=examples(
        ("laxity doctor", "the installation"),
        ("laxity doctor --config edge.yaml", "and what that file names, such as a Redis"),
        ("laxity doctor --json", "for scripts"),
    ),
)
def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The box's configuration."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for what may be wrong around a box; exit status 1 if something is."""
    findings = list(examine(load_config(config)))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(highlight=False)
        for finding in findings:
            console.print(_line(finding))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    line = Text(f"{finding.level:<8}", style=_STYLES[finding.level])
    line.append(f"{finding.check:<12}{finding.message}", style="not bold default")
    if finding.remedy:
        line.append(f"\n{'':20}{finding.remedy}", style="dim not bold default")
    return line
