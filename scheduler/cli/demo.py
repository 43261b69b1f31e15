"""`laxity demo`: starts a box and overloads it before your eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.places import check_places

app = typer.Typer(add_completion=False)


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
    seed: Annotated[int, typer.Option(help="Seed of the cameras: same seed, same scans.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with configuration, log and profile.")
    ] = False,
) -> None:
    """Start a separate box, overload it, kill its worker, and show which deadlines were kept."""
    from replay.demo.run import Demo

    check_places(json_file)
    raise typer.Exit(Demo(seconds_per_phase, cameras, seed, json_file, keep).run())
