"""`laxity profile`: measures the latencies of this machine's devices, without a box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import AsJson, WrongUsage, print_json
from scheduler.cli.tables import plain_table
from scheduler.config.box import Config, load_config
from scheduler.config.devices import DeviceConfig
from scheduler.config.problems import ConfigError
from scheduler.core.figures import figure
from scheduler.errors import LaxityError

if TYPE_CHECKING:
    from edge_agent.measuring import DeviceFigures
    from workers.device_host import Measured

app = typer.Typer(add_completion=False)


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity profile --config edge.yaml", "before the box starts, which then need not measure"),
        ("laxity profile --models models --device cpu:0", "one device"),
        ("laxity profile --again --json", "as if nothing were known; nothing is kept"),
    ),
)
def profile(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The box's configuration.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Model repository, instead of the configuration's.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this device; may be repeated.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what is known again, and keep nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure every model with every runtime on every device, and show which one would serve it.

    An agent does so at its first start; the results are kept for it in state_dir. Devices are
    measured one after another, so that none slows down another. The exit status is 1 if no model
    could be served.
    """
    try:
        settings = load_config(config)
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    if models is not None:
        settings = settings.model_copy(update={"models": models.absolute()})
    found = _measure(settings, _devices(settings, device or []), not again)
    if as_json:
        print_json({"devices": [_described(each) for each in found]})
    else:
        _show(Console(highlight=False), found)
    if not any(measured.chosen for device in found for measured in device.measured):
        raise _nothing_to_serve(found, settings.models)


def _nothing_to_serve(found: Iterable[DeviceFigures], models: Path) -> LaxityError:
    if any(device.measured or device.problems for device in found):
        return LaxityError(f"none of the models in {models} could be served")
    return LaxityError(f"there is no model in {models}")


def _devices(config: Config, wanted: Sequence[str]) -> list[DeviceConfig]:
    from edge_agent.hardware import default_devices
    from edge_agent.probing import probe_apart

    there = default_devices(probe_apart()) if config.devices == "auto" else config.devices
    by_id = {device.id: device for device in there}
    if unknown := [name for name in wanted if name not in by_id]:
        raise WrongUsage(f"--device {unknown[0]}: there are {', '.join(by_id)}")
    return [by_id[name] for name in wanted or by_id]


def _measure(config: Config, devices: list[DeviceConfig], keep: bool) -> list[DeviceFigures]:
    from edge_agent.measuring import measure

    columns = "{task.description}", BarColumn(), TextColumn("{task.fields[text]}")
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=quiet) as bars:
        tasks = {device.id: bars.add_task(device.id, total=None, text="") for device in devices}

        def tell(device: str, done: int, total: int, text: str) -> None:
            bars.update(tasks[device], completed=done, total=total, text=text)

        return list(measure(config, devices, keep, tell))


def _described(found: DeviceFigures) -> dict[str, Any]:
    rows = [_row(measured) for measured in found.measured]
    return {
        "device": found.device,
        "about": found.about,
        "measured": rows,
        "problems": list(found.problems),
    }


def _row(measured: Measured) -> dict[str, Any]:
    known = measured.profile
    return {
        "model": measured.model,
        "variant": measured.variant,
        "runtime": measured.runtime,
        "chosen": measured.chosen,
        "load_ms": known.load_ns / 1e6,
        "latency_ms": {
            str(batch): {"p50": median(samples) / 1e6, "p95": _p95(samples) / 1e6}
            for batch, samples in known.latency_ns.items()
        },
        "energy_mj": {str(batch): uj / 1e3 for batch, uj in known.energy_uj.items()},
        "stopped_early": known.partial,
        "limited": known.limited,
        "rejected": known.rejected,
    }


def _p95(samples: Sequence[int]) -> float:
    return quantiles(samples, n=20, method="inclusive")[-1] if len(samples) > 1 else samples[0]


def _show(console: Console, found: list[DeviceFigures]) -> None:
    for device in found:
        console.print(device.about, style="bold", markup=False)
        metered = any(measured.profile.energy_uj for measured in device.measured)
        for model, rows in groupby(map(_row, device.measured), key=lambda row: row["model"]):
            console.print(model, markup=False)
            console.print(_table(rows, metered))
        for problem in device.problems:
            console.print(problem, style="yellow", markup=False)


def _table(rows: Iterable[dict[str, Any]], metered: bool) -> Table:
    figures = ["load ms", "batch", "p50 ms", "p95 ms", "items/s", *["mJ/item"] * metered]
    table = plain_table("variant", "runtime", "", *figures, right=figures)
    for row in rows:
        first = [row["variant"], row["runtime"], _verdict(row), figure(row["load_ms"])]
        lines = _lines(row, metered) or [[]]
        for line in lines:
            table.add_row(*(first if line is lines[0] else [""] * len(first)), *line)
    return table


def _verdict(row: dict[str, Any]) -> str:
    if row["rejected"] is not None:
        return "rejected"
    return "serves" if row["chosen"] else ""


def _lines(row: dict[str, Any], metered: bool) -> list[list[str]]:
    """A line for the smallest and for the largest batch."""
    lines = []
    sizes = list(row["latency_ms"])
    for size in dict.fromkeys(sizes[:1] + sizes[-1:]):
        taken = row["latency_ms"][size]
        rate = int(size) * 1e3 / taken["p50"]
        line = [size, figure(taken["p50"]), figure(taken["p95"]), figure(rate)]
        energy_mj = row["energy_mj"].get(size)
        if metered:
            line.append("" if energy_mj is None else figure(energy_mj / int(size)))
        lines.append(line)
    return lines
