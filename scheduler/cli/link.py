"""`laxity replay link`: an emulated link between a real client and a real server."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import WrongUsage, print_json_line
from scheduler.errors import LaxityError

if TYPE_CHECKING:
    from replay.links import LinkEmulator

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_LOOK_S = 1.0


@app.command(
    "replay link",
    **COMMAND,
    epilog=examples(
        ("laxity replay link --to 127.0.0.1:8700 --rtt-ms 40 --mbps 5:20", "up:down"),
        (
            "laxity replay link --from ping.txt --listen 127.0.0.1:9001 --to 127.0.0.1:8700",
            "the round trips of a recording",
        ),
        (
            "laxity replay link --to 127.0.0.1:8700 --up-from lte.up --down-from lte.down",
            "what a cell carried each way",
        ),
        (
            "laxity replay link --to 127.0.0.1:8700 --outage 30+10 --outage 60+5",
            "nothing passes from second 30 on for 10 s, and again",
        ),
    ),
)
def link(
    to: Annotated[
        str, typer.Option(metavar="PLACE", help="Where it leads: HOST:PORT or unix:///PATH.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="PLACE", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    from_: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="FILE",
            help="A recording for both ways: the output of ping, a mahimahi file, or a list of "
            "Mbps; one of round trips and one of bandwidth go together.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (Typer copies it)
    up_from: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="The same, for the way there only.", show_default=False),
    ] = [],  # noqa: B006
    down_from: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="The same, for the way back only.", show_default=False),
    ] = [],  # noqa: B006
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of the recordings: ping, mahimahi or mbps; beside ping's, of the other.",
            show_default="found from their first lines",
        ),
    ] = None,
    interval_s: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Time between the samples of a ping or a list of Mbps.",
            show_default="what ping says, else 1",
        ),
    ] = None,
    rtt_ms: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Round trip, half each way.")
    ] = 0.0,
    jitter_ms: Annotated[
        float, typer.Option(min=0, metavar="MS", help="The round trip, give or take this.")
    ] = 0.0,
    mbps: Annotated[
        str | None,
        typer.Option(
            metavar="N|UP:DOWN", help="10^6 bits per second each way.", show_default="no limit"
        ),
    ] = None,
    loss: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of packets lost, as in 0.01.")
    ] = 0.0,
    stall_ms: Annotated[
        float, typer.Option(metavar="MS", help="How long a loss stalls its connection.")
    ] = 200.0,
    outage: Annotated[
        list[str],
        typer.Option(
            metavar="AT+FOR",
            help="An outage in seconds, as in 30+10; repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of jitter and losses.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON every second.")
    ] = False,
) -> None:
    """Relay connections as a link would carry them: later, slower, and sometimes not at all."""
    with _plain_errors():
        from replay.links import LinkEmulator, OneWay

        half = partial(
            OneWay.half, rtt_ms, jitter_ms,
            format=format_, interval_s=interval_s, loss=loss, stall_ms=stall_ms,
        )  # fmt: skip
        if (format_ or interval_s) and not (from_ or up_from or down_from):
            raise WrongUsage(
                "--format and --interval-s describe a recording: name one, as with --from"
            )
        up_mbps, down_mbps = _rates(mbps)
        emulator = LinkEmulator(
            listen,
            to,
            up=half(*from_, *up_from, mbps=up_mbps),
            down=half(*from_, *down_from, mbps=down_mbps),
            outages=[_outage(text) for text in outage],
            seed=seed,
        )
        asyncio.run(_relay(emulator, to, as_json))


def _rates(text: str | None) -> tuple[float | None, float | None]:
    if text is None:
        return None, None
    up, _, down = text.partition(":")
    try:
        return float(up), float(down or up)
    except ValueError:
        raise WrongUsage(f"--mbps is a number, or UP:DOWN as in 5:20, not {text!r}") from None


def _outage(text: str) -> tuple[float, float]:
    at, _, long = text.partition("+")
    try:
        return float(at), float(long)
    except ValueError:
        raise WrongUsage(f"--outage is AT+FOR in seconds, as in 30+10, not {text!r}") from None


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Reports an error as one line, and ends with status 2."""
    try:
        yield
    except BrokenPipeError:  # the reader of the figures went away
        raise
    except (LaxityError, ValueError, OSError) as error:
        raise WrongUsage(str(error)) from None


async def _relay(emulator: LinkEmulator, to: str, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with emulator:
        print(f"Listening on {emulator.address}, to {to}", file=sys.stderr, flush=True)
        with _shown(as_json) as show:
            began, before = time.monotonic(), emulator.counters()
            while not stop.is_set():
                looked = time.monotonic()
                await _wait(stop, _LOOK_S)
                now, seconds = emulator.counters(), time.monotonic() - looked
                show(
                    {
                        "at_s": round(time.monotonic() - began, 3),
                        **asdict(now),
                        "up_mbps": round((now.up_bytes - before.up_bytes) * 8e-6 / seconds, 3),
                        "down_mbps": round(
                            (now.down_bytes - before.down_bytes) * 8e-6 / seconds, 3
                        ),
                        "rtt_ms": round(emulator.rtt_ms, 3),
                        "out": emulator.is_out,
                    }
                )
                before = now


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:  # another class in Python 3.10
        return


@contextmanager
def _shown(as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows figures: JSON on stdout, or a live line on a terminal, or the last line elsewhere."""
    if as_json:
        yield print_json_line
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda figures: live.update(_line(figures), refresh=True)
        return
    last: dict[str, Any] = {}
    yield last.update
    if last:
        console.print(_line(last))


def _line(figures: dict[str, Any]) -> str:
    way = "[red]OUTAGE[/red]" if figures["out"] else f"round trip {figures['rtt_ms']:.1f} ms"
    return (
        f"{figures['at_s']:.0f} s  {way}  {figures['open']} of {figures['connections']} "
        f"connections open  up {figures['up_mbps']:.2f} Mbit/s  down {figures['down_mbps']:.2f} "
        f"Mbit/s  {(figures['up_bytes'] + figures['down_bytes']) / 1e6:.1f} MB in all  "
        f"{figures['stalls']} stalls  {figures['refused']} refused"
    )
