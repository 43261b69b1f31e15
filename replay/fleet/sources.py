"""Fleets from any source: a file, a running box, its journal, or a table of profiles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from replay.fleet.file import read_fleet
from replay.fleet.model import Device, Fleet, FleetError, Truth, quantile_samples, way_to
from replay.readers import Lines, TraceError, open_lines
from replay.readers.columns import header_cells, rows_below
from replay.readers.lines import shown
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes
from scheduler.core.target_specs import TargetSpec, reached_over

CONNECT_TIMEOUT_S = 2.0
JOURNAL = ".journal"

Sizes = tuple[tuple[int, float], ...]
"""Size steps, in order, each with the factor on the time of items of the measured size."""

_P95 = NormalDist().inv_cdf(0.95)
_COLUMNS = "model, accelerator, batch, 50th and 90th percentile"
_WORDS = {
    "model": ("model",),
    "accelerator": ("accelerator", "device", "target", "hardware"),
    "batch": ("batch",),
    "p50": ("50", "median"),
    "p90": ("90",),
}
_UNITS = {
    word: ns
    for ns, words in (
        (1.0, "ns nsec nanosecond nanoseconds"),
        (1e3, "us µs μs usec microsecond microseconds"),
        (1e6, "ms msec millis millisecond milliseconds"),
        (1e9, "s sec secs second seconds"),
        (60e9, "min mins minute minutes"),
    )
    for word in words.split()
}
_WORD = re.compile(r"[^\W\d_]+")
_BESIDE = {"p", "th", "percentile", "latency", "time", "size", "name", "of", "the"}
"""Words in a column's name that add nothing to the quantity it names."""


def load_fleet(source: str | Path) -> Fleet:
    """A fleet from a file or a journal, or from a running box if `source` is `live` or a URL.

    A file is YAML, or a CSV of profiles; a journal is a folder, or one file of it.

    Raises:
        FleetError: The fleet can't be used.
        JournalError: A journal can't be read.
        LaxityError: A file has a mistake, or the box can't be reached.
        TraceError: A table has a mistake, or so has the recording of a link.
    """
    if str(source) == "live" or "://" in str(source):
        return live_fleet(None if str(source) == "live" else str(source))
    path = Path(source)
    if path.is_dir() or path.suffix == JOURNAL:
        from replay.observed import observed_fleet

        return observed_fleet(path, lambda _: None)
    if path.suffix.lower() in (".csv", ".gz"):
        return table_fleet(path)
    return read_fleet(path)


def live_fleet(url: str | None) -> Fleet:
    """The targets of a running box, with the profiles it has measured.

    Args:
        url: As in `Client`; None is this machine's box.

    Raises:
        LaxityError: The box can't be reached.
        FleetError: No model is ready on it.
    """
    from scheduler import Client

    with Client(url, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        return fleet_of_models(client.models(), client.status())


def fleet_of_models(said: Mapping[str, Any], status: Mapping[str, Any]) -> Fleet:
    """The fleet of a box, from its report of its models and its status.

    Args:
        said: What `Client.models` returns.
        status: What `Client.status` returns.

    Raises:
        FleetError: No model is ready on it.
    """
    targets = {target["id"]: target for target in status["targets"]}
    sizes = {name: _sizes(target) for name, target in targets.items()}
    offers: dict[str, list[Offer]] = {}
    for model in said["models"]:
        for rank, variant in enumerate(model["variants"]):
            for place in variant["targets"]:
                key = model["name"], variant["name"]
                shapes, _ = sizes.get(place["target"], {}).get(key, ((), ()))
                offer = _offer(*key, rank, place, shapes)
                offers.setdefault(place["target"], []).append(offer)
    if not offers:
        raise FleetError("the box has measured nothing yet; `laxity models` shows how far it is")
    devices = []
    for name, each in sorted(offers.items()):
        target = targets.get(name, {})
        costs = target.get("costs", {})
        base_ns, byte_ns = target.get("transfer_ns", (0, 0.0))
        lead_ns = max(0, target.get("lead_ns", 0) - base_ns)
        handover_ns = 0 if base_ns else target.get("handover_ns") or 0
        spec = TargetSpec(name, tuple(each), lead_ns=lead_ns, **costs)
        spec = reached_over(spec, base_ns, byte_ns)
        factors = {key: factors for key, (_, factors) in sizes.get(name, {}).items()}
        truth = Truth(handover_ns=handover_ns, sizes=factors)
        devices.append(Device(spec, way_to(spec), truth))
    return Fleet("live", tuple(devices), notes=("targets and profiles of a running box",))


def _sizes(target: Mapping[str, Any]) -> dict[tuple[str, str], tuple[Shapes, Sizes]]:
    """By model and variant, the measured shapes and the factors learned for other sizes."""
    return {
        (each["model"], each["variant"]): (
            tuple(map(tuple, each["item_shapes"])),
            tuple((step, factor) for step, factor in each["factors"]),
        )
        for each in target.get("sizes", ())
    }


def _offer(model: str, variant: str, rank: int, place: Mapping[str, Any], shapes: Shapes) -> Offer:
    samples = {
        int(batch): quantile_samples(ms["p50"] * 1e6, ms["p95"] * 1e6, _P95)
        for batch, ms in place["latency_ms"].items()
    }
    energy_uj = {int(batch): uj for batch, uj in place.get("energy_uj", {}).items()}
    accuracy = place.get("accuracy")
    return Offer(model, variant, place["runtime"], samples, rank, accuracy, energy_uj, shapes)


def table_fleet(path: Path) -> Fleet:
    """A fleet from a table of profiles: one target per accelerator.

    The columns may be in any order and among others. They are found by a word in their names:
    model, accelerator, batch, 50, 90. Latencies are in milliseconds unless the name says another
    unit, as `p50_us` does.

    Raises:
        TraceError: The table can't be read.
        FleetError: A batch size of 1 is missing.
    """
    found: dict[str, dict[str, dict[int, tuple[int, ...]]]] = {}
    with open_lines(path) as lines:
        places, header = _header(lines)
        for row in rows_below(header, lines):
            cells = [cell.strip() for cell in row]
            model, device = cells[places["model"]], cells[places["accelerator"]]
            batch = lines.count(cells[places["batch"]], "the batch size")
            p50_ns, p90_ns = (_ns(lines, cells, header, places[name]) for name in ("p50", "p90"))
            if batch < 1 or p50_ns <= 0 or p90_ns < p50_ns:
                wanted = "a batch size from 1, and 0 < 50th percentile <= 90th percentile"
                raise lines.error(f"{batch}, {p50_ns / 1e6:g} and {p90_ns / 1e6:g} ms", wanted)
            if not model or not device:
                raise lines.error(
                    f"no name in {shown(','.join(row))}", "a model and an accelerator"
                )
            sizes = found.setdefault(device, {}).setdefault(model, {})
            if batch in sizes:
                told = f"{shown(model)} on {shown(device)} with batch {batch} for the second time"
                raise lines.error(told, "each once (a variant may be part of the model's name)")
            sizes[batch] = quantile_samples(p50_ns, p90_ns)
        if not found:
            raise TraceError(lines.path, None, "no profile", f"rows of {_COLUMNS}")
    return Fleet(path.stem, tuple(_devices(path, found)))


def _header(lines: Lines) -> tuple[dict[str, int], list[str]]:
    if lines.peek() is None:
        raise TraceError(lines.path, None, "the file is empty", f"a table of {_COLUMNS}")
    header = header_cells(next(lines))
    places = {}
    for name, words in _WORDS.items():
        fits = [i for i, cell in enumerate(header) if any(word in cell for word in words)]
        if not fits:
            raise lines.error(f"no column {name} in {shown(','.join(header))}", _COLUMNS)
        if len(fits) > 1:
            plain = {*_BESIDE, *_UNITS, *words}
            fits = [i for i in fits if plain.issuperset(_WORD.findall(header[i]))] or fits
        if len(fits) > 1:
            columns = ", ".join(header[i] for i in fits)
            raise lines.error(f"{len(fits)} columns for {name}: {columns}", "one")
        places[name] = fits[0]
    if len(set(places.values())) < len(places):
        found = f"one column for two of these in {shown(','.join(header))}"
        raise lines.error(found, f"a column each for {_COLUMNS}, with commas between")
    return places, header


def _ns(lines: Lines, cells: list[str], header: list[str], place: int) -> float:
    named = [word for word in _WORD.findall(header[place]) if word in _UNITS]
    return lines.number_from_0(cells[place], header[place]) * _UNITS[named[0] if named else "ms"]


def _devices(path: Path, found: dict[str, dict[str, dict[int, tuple[int, ...]]]]) -> list[Device]:
    devices = []
    for device, models in found.items():
        try:
            offers = [Offer(model, "default", "table", sizes) for model, sizes in models.items()]
        except ValueError as error:
            raise FleetError(f"{path}: accelerator {device!r}: {error}") from None
        devices.append(Device(TargetSpec(device, tuple(offers), lead_ns=0)))
    return devices
