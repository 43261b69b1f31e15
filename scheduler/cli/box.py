"""Options and helpers shared by the commands that talk to a box."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from scheduler.client.sync_client import Client

CONNECT_TIMEOUT_S = 2.0

Url = Annotated[
    str | None,
    typer.Option(
        envvar="LAXITY_URL",
        metavar="URL",
        help="The box: unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT. Default: this machine's.",
        show_default=False,
    ),
]

SHOWN_VALUES = 5
Top = Annotated[int, typer.Option(min=1, metavar="K", help="How many values to show.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.npz", help="Save the outputs.")
]
"""How results are shown, and where they are saved."""


@contextmanager
def box(url: str | None) -> Iterator[Client]:
    """A client of the box for the duration of a command."""
    with Client(url, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        yield client


@contextmanager
def screen(console: Console, *, whole: bool = False) -> Iterator[Callable[[RenderableType], None]]:
    """Shows each view in place of the last on a terminal, or after the last elsewhere.

    Args:
        console: Where to show the views.
        whole: Whether the views take up the whole screen.
    """
    if not console.is_terminal:
        yield lambda view: console.print(view, "")
        return
    with Live(console=console, auto_refresh=False, screen=whole) as live:
        yield lambda view: live.update(view, refresh=True)


def is_restarted(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the scheduler was started again between two of its statuses, and counts from 0."""
    return before.get("pid") != now.get("pid") or now["uptime_s"] < before["uptime_s"]
