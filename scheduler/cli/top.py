"""`laxity top`: shows the current load of a box."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scheduler.cli.box import Url, box, is_restarted, screen
from scheduler.cli.help import COMMAND, examples
from scheduler.cli.status_view import headline
from scheduler.cli.streams import AsJson, print_json_line
from scheduler.cli.tables import STYLES, per_second, plain_table
from scheduler.client.sync_client import Client
from scheduler.core.figures import figure
from scheduler.shares import percent

app = typer.Typer(add_completion=False)

Look = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""A box's status and statistics."""

_READINGS = {
    "busy": ("utilisation", percent),
    "memory GB": ("memory_used_bytes", lambda size: figure(size / 1e9)),
    "°C": ("temperature_c", lambda celsius: f"{celsius:.0f}"),
    "GHz": ("clock_hz", lambda hertz: figure(hertz / 1e9)),
    "W": ("power_w", figure),
}

LONG_WAIT = 0.1
"""From which share of its time on the CPU a device is said to be slowed by the wait for a core."""


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity top", "until Ctrl-C, the busiest models first"),
        ("laxity top --interval 5 --count 12 --json", "a minute for a script, a line each"),
    ),
)
def top(
    url: Url = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=86_400, metavar="S", help="Seconds between updates.")
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Stop after this many updates.", show_default="never"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show rates, delays and devices of a box over the last second.

    `laxity status` shows totals since the box started.
    """
    with box(url) as client:
        try:
            if as_json:
                for _, activity in _looks(client, interval, count):
                    print_json_line(activity)
                return
            # With --count, no alternate screen: it would vanish at the end with what it showed.
            with screen(Console(highlight=False), whole=count is None) as show:
                for status, activity in _looks(client, interval, count):
                    show(_view(status, activity))
        except KeyboardInterrupt:
            return


def _looks(
    client: Client, interval: float, count: int | None
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yields the status and the activity since the last query, every `interval` seconds."""
    before = _look(client)
    for _ in itertools.count() if count is None else range(count):
        time.sleep(interval)
        now = _look(client)
        yield now[0], activity_between(before, now)
        before = now


def _look(client: Client) -> Look:
    return client.status(), client.statistics()


def activity_between(before: Look, now: Look) -> dict[str, Any]:
    """The activity of a box between two queries.

    Returns:
        `seconds`, `outcomes` (requests per second by outcome), `models` (busiest first, with
        requests per second, failures per second, and mean times) and `targets`; figures are rounded
        to the thousandth. If the scheduler was restarted meanwhile, they count from its start.
    """
    (status_before, counted_before), (status, counted) = before, now
    seconds = status["uptime_s"] - status_before["uptime_s"]
    if is_restarted(status_before, status):
        seconds, status_before, counted_before = status["uptime_s"], {"outcomes": {}}, []
    seconds = max(seconds, 1e-3)
    ended = status_before["outcomes"]
    earlier = {(each["name"], each["version"]): each for each in counted_before}
    models = [
        _model(each, earlier.get((each["name"], each["version"])), seconds) for each in counted
    ]
    return {
        "seconds": round(seconds, 3),
        "outcomes": {
            name: round((number - ended.get(name, 0)) / seconds, 3)
            for name, number in status["outcomes"].items()
        },
        "models": sorted(models, key=lambda model: -model["per_s"] - model["failed_per_s"]),
        "targets": [
            {"id": target["id"], "up": target["up"], "runs": target["runs"]}
            | {"telemetry": target.get("telemetry", {})}
            for target in status["targets"]
        ],
    }


def _model(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
) -> dict[str, Any]:
    def rise(key: str) -> tuple[int, int]:
        of, was = now["inference_stats"][key], before and before["inference_stats"][key]
        return of["count"] - (was["count"] if was else 0), of["ns"] - (was["ns"] if was else 0)

    answered, total_ns = rise("success")
    failed, _ = rise("fail")
    ran, queue_ns = rise("queue")
    _, execute_ns = rise("compute_infer")
    batches = now["execution_count"] - (before["execution_count"] if before else 0)
    return {
        "model": now["name"],
        "variant": now["version"],
        "per_s": round(answered / seconds, 3),
        "failed_per_s": round(failed / seconds, 3),
        "queue_ms": round(queue_ns / ran / 1e6, 3) if ran else None,
        "execute_ms": round(execute_ns / ran / 1e6, 3) if ran else None,
        "total_ms": round(total_ns / answered / 1e6, 3) if answered else None,
        "batch": round(ran / batches, 3) if batches else None,
    }


def _view(status: Mapping[str, Any], activity: Mapping[str, Any]) -> RenderableType:
    rates = Text("per second  ", style="bold")
    for outcome, rate in activity["outcomes"].items():
        if rate:
            style = f"not bold {STYLES.get(outcome, '')}"
            rates.append(f"{outcome} {per_second(rate)}  ", style=style)
    if not any(activity["outcomes"].values()):
        rates.append("no request ended", style="not bold dim")
    parts: list[RenderableType] = [headline(status), rates, Text(), _devices(activity["targets"])]
    if busy := [m for m in activity["models"] if m["per_s"] or m["failed_per_s"]]:
        parts += [Text(), _models(busy)]
    return Group(*parts)


def _devices(targets: Sequence[Mapping[str, Any]]) -> Table:
    told = {
        title: (key, spell)
        for title, (key, spell) in _READINGS.items()
        if any(key in target["telemetry"] for target in targets)
    }
    table = plain_table("target", "state", "runs", *told, "slowed by", right=("runs", *told))
    for target in targets:
        known = target["telemetry"]
        cells = [spell(known[key]) if key in known else "" for key, spell in told.values()]
        state = Text("up", style="green") if target["up"] else Text("down", style="red")
        slowed = Text(", ".join(_slowed_by(known)), style="yellow")
        table.add_row(target["id"], state, str(target["runs"]), *cells, slowed)
    return table


def _slowed_by(telemetry: Mapping[str, Any]) -> Iterator[str]:
    yield from telemetry.get("throttled", ())
    wait = telemetry.get("core_wait", 0.0)
    if wait >= LONG_WAIT:
        yield f"waiting for a core {percent(wait)}"


def _models(models: Sequence[Mapping[str, Any]]) -> Table:
    figures = ("answers/s", "failed/s", "batch", "queue ms", "run ms", "total ms")
    table = plain_table("model", "variant", *figures, right=figures)
    for model in models:
        means = ("batch", "queue_ms", "execute_ms", "total_ms")
        table.add_row(
            model["model"],
            model["variant"] or "any",
            per_second(model["per_s"]),
            per_second(model["failed_per_s"]),
            *("" if model[key] is None else figure(model[key]) for key in means),
        )
    return table
