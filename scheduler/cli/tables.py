"""Tables for the commands, made from a box's answers without further queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scheduler.core.figures import figure
from scheduler.core.signature import shape_text
from scheduler.shares import percent
from scheduler.texts import decoded, dtype_name

Answer = Mapping[str, Any]

STYLES = {
    "completed": "green",
    "late": "yellow",
    "infeasible": "cyan",
    "overloaded": "cyan",
    "expired": "red",
    "unavailable": "red",
    "failed": "red",
}


def policy_text(policy: Answer) -> str:
    """A policy's name with its options, including those of a policy that it wraps."""
    told = [
        f"{key} {policy_text(value) if isinstance(value, Mapping) else value}"
        for key, value in policy.items()
        if key != "name"
    ]
    return str(policy.get("name", "?")) + (f" ({', '.join(told)})" if told else "")


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table with a line under its head only; columns in `right` are right-aligned."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold",
    )
    figures = set(right)
    for name in columns:
        # Fold long values instead of cutting them: half a name is useless.
        side: Literal["left", "right"] = "right" if name in figures else "left"
        table.add_column(name, justify=side, overflow="fold")
    return table


# -- models


def models_view(models: Sequence[Answer], problems: Sequence[Answer]) -> RenderableType:
    """The models, and their latencies per target."""
    parts: list[RenderableType] = []
    for model in models:
        parts += [*_model(model), Text()]
    if not models:
        parts += [Text("No models yet.", style="dim"), Text()]
    if problems:
        parts.append(Text("Problems", style="bold red"))
        parts += [
            Text.assemble((f"{problem['device']}  {problem['model']}: "), problem["reason"])
            for problem in problems
        ]
    elif parts:
        parts.pop()
    return Group(*parts)


def _model(model: Answer) -> Iterator[RenderableType]:
    title = Text(model["name"], style="bold")
    if model.get("description"):
        title.append(f"  {model['description']}", style="not bold dim")
    yield title
    if not model.get("loaded", True):
        yield Text("unloaded: requests for it are refused", style="yellow")
    yield Text(f"takes  {'; '.join(map(spell, model['inputs'])) or 'nothing'}")
    yield Text(f"gives  {'; '.join(map(spell, model['outputs'])) or 'nothing'}")
    padded = [each for each in model["inputs"] if each.get("padded_to")]
    if padded:
        lengths = [f"{each['name']} to {', '.join(map(str, each['padded_to']))}" for each in padded]
        yield Text(f"pads   {'; '.join(lengths)}")
    targets = [target for variant in model["variants"] for target in variant["targets"]]
    sizes = dict.fromkeys(
        f"{name} {shape_text(shape)}"
        for target in targets
        for name, shape in target.get("measured_shapes", {}).items()
    )
    if sizes:
        yield Text(f"timed  with {', '.join(sizes)}")
    metered = any(target.get("energy_uj") for target in targets)
    figures = ("accuracy", "batch", "p50 ms", "p95 ms", "items/s", *(("mJ",) if metered else ()))
    table = plain_table("variant", "target", "runtime", *figures, right=figures)
    for variant in model["variants"]:
        for target in variant["targets"]:
            _add_target(table, variant["name"], target, metered)
        if not variant["targets"]:
            table.add_row(variant["name"], Text("no target yet", style="yellow"))
    yield table


def _add_target(table: Table, variant: str, target: Answer, metered: bool) -> None:
    latency = target["latency_ms"]
    sizes = sorted(latency, key=int)
    accuracy = "" if target["accuracy"] is None else percent(target["accuracy"])
    for row, size in enumerate(dict.fromkeys((sizes[0], sizes[-1]))):
        first = [variant, target["target"], target["runtime"], accuracy] if row == 0 else [""] * 4
        measured = latency[size]
        rate = int(size) * 1000 / measured["p50"]
        cells = [figure(measured["p50"]), figure(measured["p95"]), figure(rate)]
        if metered:
            energy_uj = target.get("energy_uj", {}).get(size)
            cells.append("" if energy_uj is None else figure(energy_uj / 1e3))
        table.add_row(*first, size, *cells)


# -- infer


def outputs_view(outputs: Mapping[str, NDArray[Any]], top: int) -> Iterator[RenderableType]:
    """Shape and largest values of each output."""
    for name, array in outputs.items():
        line = Text(name, style="bold")
        line.append(f"  {dtype_name(array)} {list(array.shape)}", style="not bold")
        yield line
        if array.dtype.kind == "S":
            for text in decoded(array).ravel()[:top].tolist():
                yield Text(f"  {text}")
            continue
        ranked = top_values(array, top)
        if not ranked:
            yield Text("  empty", style="dim")
            continue
        scale = max((abs(value) for _, value in ranked if isfinite(value)), default=0.0) or 1.0
        for index, value in ranked:
            bar = "█" * round(24 * abs(value) / scale) if isfinite(value) else ""
            shown = f"{value:>10}" if isinstance(value, int) else f"{value:>10.4g}"
            yield Text.assemble(f"  {index:>6}  {shown}  ", (bar, "green"))


def top_values(array: NDArray[Any], count: int) -> list[tuple[str, float | int]]:
    """The largest values with their indices, largest first; dimensions of 1 are left out.

    Text outputs have none.
    """
    if array.dtype.kind == "S":
        return []
    flat = np.squeeze(array)
    order = np.argsort(-flat.astype(np.float64), axis=None, kind="stable")[:count]
    number: type[float | int] = float if array.dtype.kind == "f" else int
    found = []
    for place in order:
        indices = np.unravel_index(place, flat.shape)
        found.append((",".join(str(int(i)) for i in indices), number(flat[indices])))
    return found


# -- words


def spell(spec: Answer) -> str:
    """Name, dtype and shape of a tensor."""
    return f"{spec['name']} {spec['dtype']} {shape_text(spec['shape'])}"


def per_second(rate: float) -> str:
    """A rate to one decimal, or to two significant digits if it is less than one."""
    return f"{rate:,.1f}" if rate >= 0.95 or rate <= 0 else f"{rate:.2g}"


def duration(seconds: float) -> str:
    """Seconds as people say them: `45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    left = int(seconds)
    parts: list[str] = []
    for size, unit in units:
        count, left = divmod(left, size)
        if count or (parts and len(parts) < 2):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
