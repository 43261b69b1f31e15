"""`laxity status`: shows the state of a box, once or repeatedly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from scheduler.cli.box import Url, box, is_restarted, screen
from scheduler.cli.help import COMMAND, examples, given
from scheduler.cli.status_view import status_view
from scheduler.cli.streams import AsJson, WrongUsage, print_json, print_json_line
from scheduler.client.sync_client import Client

app = typer.Typer(add_completion=False)


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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, metavar="S", help="Seconds between updates, with --watch."
        ),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show the state of a box: its targets, its queues, and how requests ended."""
    if not watch and "interval" in given(ctx):
        raise WrongUsage("--interval goes with --watch")
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
                print_json_line(client.status())
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
    if not seconds or is_restarted(before, now):
        return {}
    counts = before["outcomes"]
    return {name: (n - counts.get(name, 0)) / seconds for name, n in now["outcomes"].items()}
