"""Turns what `laxity replay` was asked for into experiments."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from replay.experiment import Experiment
from replay.fleet.capacity import capacity_per_s
from replay.fleet.model import Fleet
from replay.fleet.sources import JOURNAL, live_fleet, load_fleet
from replay.journal import arrivals
from replay.observed import observed_fleet
from replay.readers import FORMATS, TraceError, format_of, open_trace
from replay.readers.timing import LATEST_S, is_slice
from replay.scenarios import load_scenario, scenario_names, standard_scenarios
from replay.simulator import Arrival
from replay.sources import JournalSource, WorkloadSource, load_of, mix_of
from replay.workloads import (
    Fixed,
    Mix,
    MixEntry,
    Setting,
    TraceStream,
    Workload,
    WorkloadError,
    load_workload,
)
from scheduler import Unavailable
from scheduler.core.names import did_you_mean, hint
from scheduler.yaml_loader import MALFORMED, load

SCENARIOS = "scenarios"
"""The source name that stands for all standard scenarios."""

DEADLINE_SCALE = 5.0
"""The deadline for traces that have none, as a multiple of the base latency."""


class AskError(ValueError):
    """The request can't be fulfilled; the message says what would be possible."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked for, in the terms of the command line.

    Attributes:
        source: `scenarios`, a scenario's name, or else a file or a folder.
        fleet: A file, `live` or a box's address.
        load: A share of the fleet's capacity.
        rate_scale: The factor on a trace's request rate.
        speed: How much faster to play a trace.
        slice: `FROM:TO` in seconds.
        format: The trace's format.
        model: The model that a trace's requests ask for.
        deadline_ms: The deadline of a trace's requests.
        requests: The most requests to play.
        only: A pattern that selects scenarios.
        bound: Whether to compute the bound.
        url: The address of the running box.
        seeds: The number of seeds to play with.
    """

    source: str
    fleet: str | None = None
    load: float | None = None
    rate_scale: float = 1.0
    speed: float = 1.0
    slice: str | None = None
    format: str | None = None
    model: str | None = None
    deadline_ms: float | None = None
    requests: int | None = None
    only: str = "*"
    bound: bool = True
    url: str | None = None
    seeds: int = 1


_IN_MS = ("deadlines", "mooncake", "timestamps-ms")
"""Formats whose times are milliseconds, and numbers that might as well be seconds."""

_LOOK, _HURRY = 1_000, 20
"""Their first requests, and the load from which the times seem to be seconds."""

_RISING = 10
"""The fewest requests whose deadlines are compared with their arrivals, and by how many times their
arrivals have to be further apart than the rest of their deadlines."""

_READ_AGAIN = "a trace is read once for each policy, so it needs a file"


def plan(ask: Ask, live: bool = False) -> list[Experiment]:
    """The experiments that were asked for.

    Args:
        ask: What was asked for.
        live: Whether to play against a running box; its targets are then the fleet.

    Raises:
        AskError: There is no such source, or an option does not apply to it.
        ConfigError, FleetError, ScenarioError, TraceError, WorkloadError: A file can't be used.
        LaxityError: The box can't be reached.
    """
    if live and ask.fleet is None:
        ask = replace(ask, fleet="live")
    if ask.only != "*" and ask.source != SCENARIOS:
        raise AskError(f"--only is for {SCENARIOS!r}: it selects some of them")
    experiments = [replace(each, with_bound=ask.bound) for each in _planned(ask)]
    for each in experiments:
        # A faulty source shows when its first request is read.
        if all(next(each.arrivals(seed), None) is None for seed in range(1, ask.seeds + 1)):
            cut = f" in {ask.slice}" if ask.slice else ""
            thinned = f" that --rate-scale {ask.rate_scale:g} leaves" if ask.rate_scale < 1 else ""
            seeds = "seed 1" if ask.seeds == 1 else f"seeds 1 to {ask.seeds}"
            raise AskError(f"{ask.source} has no request{cut}{thinned} ({seeds})")
    return [_guessed(each, ask) for each in experiments]


def _planned(ask: Ask) -> list[Experiment]:
    path = Path(ask.source)
    if file_of(ask.source) is None:
        _refuse_trace_options(ask)
        found = standard_scenarios(ask.only if ask.source == SCENARIOS else ask.source)
        return [_placed(each.experiment(ask.requests, ask.load), ask) for each in found]
    if not path.exists():
        raise _absent(ask.source)
    if path.is_dir() or path.suffix == JOURNAL:
        return [_journal(ask, path)]
    if path.suffix not in (".yaml", ".yml"):
        return [_trace(ask, path)]
    keys = _keys(path)
    if "boxes" in keys:
        raise AskError(
            f"{ask.source} is a fleet: give it with --fleet, and play a workload or a trace on it"
        )
    if not keys.isdisjoint(("about", "fleet", "workload")):
        _refuse_trace_options(ask)
        return [_placed(load_scenario(path).experiment(ask.requests, ask.load), ask)]
    return [_workload(ask, path.stem, load_workload(path, ask.requests))]


def file_of(source: str) -> str | None:
    """The file or folder that a source names, whether it exists or not; None for scenarios."""
    return None if source in (SCENARIOS, *scenario_names()) else source


def _absent(source: str) -> AskError:
    if source == "-":
        return AskError(f"stdin can't be played: {_READ_AGAIN}")
    if "/" in source or Path(source).suffix:
        path = Path(source)
        known = [each.name for each in path.parent.glob("*")]
        if "/" not in source:
            known += scenario_names()
        return AskError(f"there is no file {source}{hint(path.name, known)}")
    names = scenario_names()
    meant = did_you_mean(source, [*names, SCENARIOS], f"scenarios are {', '.join(names)}")
    return AskError(f"there is no file and no scenario called {source!r}; {meant}")


def _guessed(experiment: Experiment, ask: Ask) -> Experiment:
    """Notes where numbers may have another unit, and warns: as rates, times may play for hours."""
    fleet = experiment.fleet
    for stream in _traces(experiment):
        form = stream.format or format_of(stream.path)
        note = None
        if form == "rates" and stream.format is None:
            option = "--format" if str(stream.path) == ask.source else "`format`"
            note = (
                f"the numbers of {stream.path.name} are read as requests per second; if they are "
                f"times, give their unit with {option}, e.g. timestamps-s or timestamps-ms"
            )
        elif form in _IN_MS:
            first = _first_of(stream, fleet)
            note = _dated(stream, first) or _hurried(stream, fleet, [each.at_ns for each in first])
        if note is not None:
            warnings.warn(note, stacklevel=2)
            fleet = replace(fleet, notes=(*fleet.notes, note))
    return replace(experiment, fleet=fleet)


def _first_of(stream: TraceStream, fleet: Fleet) -> list[Arrival]:
    """The first requests of a trace; of its start, since a late slice takes long to reach."""
    setting = Setting(1, base_ns=fleet.base_ns())
    found: list[Arrival] = []
    with suppress(TraceError, WorkloadError):  # reported where it is played
        found.extend(islice(replace(stream, slice_s=(0.0, None)).arrivals(setting), _LOOK))
    return found


def _dated(stream: TraceStream, first: Sequence[Arrival]) -> str | None:
    """A note if deadlines rise by what arrivals do, so that they seem to be moments themselves."""
    if len(first) < _RISING:
        return None
    at_ns = [int(each.at_ns * stream.speed) for each in first]
    lags_ns = [each.budget_ns - time_ns for each, time_ns in zip(first, at_ns, strict=True)]
    span_ns = at_ns[-1] - at_ns[0]
    if not span_ns or (max(lags_ns) - min(lags_ns)) * _RISING > span_ns:
        return None
    return (
        f"the deadlines of the first {len(first):,} requests of {stream.path.name} rise as their "
        "arrivals do; if they are moments, subtract the arrivals: a deadline counts from its "
        "request's arrival"
    )


def _hurried(stream: TraceStream, fleet: Fleet, times_ns: Sequence[int]) -> str | None:
    """A note if so many requests come at once that the times seem to be seconds."""
    if stream.speed != 1:
        return None
    span_ns = times_ns[-1] - times_ns[0] if times_ns else 0  # another seed may have some
    capacity = capacity_per_s(fleet, mix_of(Workload((stream,)), fleet))
    if not 0 < _HURRY * capacity * span_ns < len(times_ns) * 1e9:
        return None
    return (
        f"the first {len(times_ns):,} requests of {stream.path.name} come within "
        f"{span_ns / 1e9:.3g} s, over {_HURRY} times as fast as the fleet can serve them; if their "
        "times are seconds, not ms, play it with a speed of 0.001"
    )


def _keys(path: Path) -> Set[Any]:
    """The keys of a YAML file; none if it can't be read, which reading a workload will report."""
    try:
        data = load(path.read_text(encoding="utf-8"))
    except (OSError, *MALFORMED):
        return frozenset()
    return data.keys() if isinstance(data, Mapping) else frozenset()


def _placed(experiment: Experiment, ask: Ask) -> Experiment:
    """The scenario's experiment, on another fleet if one is given."""
    return experiment if ask.fleet is None else replace(experiment, fleet=_fleet(ask))


def _workload(ask: Ask, name: str, workload: Workload) -> Experiment:
    streams = workload.streams
    traced = [stream for stream in streams if isinstance(stream, TraceStream)]
    if not traced:
        _refuse_trace_options(ask)
    for option, is_given in _of_traces(ask).items():
        if is_given:
            raise AskError(
                f"{option} is for a trace given by itself; {ask.source} says this about its own"
            )
    if ask.load is not None:
        workload = workload.with_load(ask.load)
    elif traced:
        workload = replace(
            workload, streams=tuple(_retimed(s, ask) if s in traced else s for s in streams)
        )
    return Experiment(name, WorkloadSource(workload), _fleet(ask), load_of(workload))


def _retimed(stream: Any, ask: Ask) -> Any:
    if ask.slice is not None:
        stream = replace(stream, slice_s=_slice(ask.slice))
    return replace(
        stream, speed=stream.speed * ask.speed, rate_scale=stream.rate_scale * ask.rate_scale
    )


def _trace(ask: Ask, path: Path) -> Experiment:
    if path.is_fifo():
        raise AskError(f"{path} is a pipe: {_READ_AGAIN}")
    if ask.load is not None:
        raise AskError("the load of a trace can't be set; give it a --rate-scale")
    if ask.format is not None and ask.format not in FORMATS:
        meant = did_you_mean(ask.format, FORMATS)
        raise AskError(f"unknown trace format {ask.format!r}; {meant}")
    fleet = _fleet(ask)
    first = next(open_trace(path, ask.format))
    models = [ask.model or fleet.models()[0]]
    if ask.model is None and first.model is not None:
        models = fleet.models()
    entries = [MixEntry(model) for model in models]
    note = f"every request of the trace is for model {models[0]!r}"
    if len(models) > 1:
        note = "every request of the trace is for the model that it names"
    if ask.deadline_ms is not None:
        entries = [replace(entry, deadline_ms=Fixed(ask.deadline_ms)) for entry in entries]
    elif first.budget_ns is None:
        entries = [replace(entry, deadline_scale=Fixed(DEADLINE_SCALE)) for entry in entries]
        base_ms = fleet.base_ns().get(models[0], 0) / 1e6
        note += (
            f" and has {DEADLINE_SCALE * base_ms:.3g} ms to its deadline, {DEADLINE_SCALE:g} times "
            "its base latency, since the trace has no deadlines (--deadline-ms gives another)"
        )
    stream = TraceStream(
        path, Mix(entries), ask.format, ask.speed, ask.rate_scale, _slice(ask.slice)
    )
    workload = Workload((stream,), requests=ask.requests)
    fleet = replace(fleet, notes=(*fleet.notes, note))
    return Experiment(path.name.split(".")[0], WorkloadSource(workload), fleet)


def _journal(ask: Ask, path: Path) -> Experiment:
    if ask.load is not None:
        raise AskError("the load of a journal can't be set; give it a --rate-scale")
    if given := [name for name, is_given in _of_traces(ask).items() if is_given]:
        raise AskError(f"{given[0]} is for traces; a journal's requests have their own")
    source = JournalSource(path, ask.speed, ask.rate_scale, _slice(ask.slice), ask.requests)
    damage: dict[str, None] = {}

    def note(text: str) -> None:
        damage[text] = None
        warnings.warn(text, stacklevel=2)

    if ask.fleet is not None:
        fleet = _fleet(ask)
        deque(arrivals(path, note, whole=False), maxlen=0)
    else:
        fleet = observed_fleet(path, note, begin_ns=source.begin_ns)
        if source.begin_ns is None:
            paced = (
                "at another speed, the devices are fast and slow at random times: compare several "
                "--seeds"
            )
            fleet = replace(fleet, notes=(*fleet.notes, paced))
    fleet = replace(fleet, notes=(*fleet.notes, *damage))
    return Experiment(path.stem, source, fleet, at_once=True)


def _fleet(ask: Ask) -> Fleet:
    if ask.fleet is not None and ask.fleet != "live":
        return load_fleet(ask.fleet)
    try:
        return live_fleet(ask.url)
    except Unavailable as error:
        if ask.fleet or ask.url:
            raise
        raise Unavailable(f"{error} Without a box, name the targets with --fleet FILE") from None


def _refuse_trace_options(ask: Ask) -> None:
    given = {
        "--slice": ask.slice is not None,
        "--speed": ask.speed != 1,
        "--rate-scale": ask.rate_scale != 1,
        **_of_traces(ask),
    }
    for option, is_given in given.items():
        if is_given:
            raise AskError(f"{option} is for traces and journals, which {ask.source} isn't")


def _of_traces(ask: Ask) -> dict[str, bool]:
    """Options that describe a trace's requests, and whether they were given."""
    return {
        "--format": ask.format is not None,
        "--deadline-ms": ask.deadline_ms is not None,
        "--model": ask.model is not None,
    }


def _slice(text: str | None) -> tuple[float, float | None]:
    if text is None:
        return 0.0, None
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        found = float(start or 0), float(end) if end else None
    except ValueError:
        raise AskError(f"--slice is FROM:TO in seconds, such as 60:120, not {text!r}") from None
    if not is_slice(*found):
        wanted = f"FROM:TO in seconds with 0 <= FROM < TO <= {LATEST_S:g}, or FROM: up to the end"
        raise AskError(f"--slice is {wanted}, such as 60:, not {text!r}")
    return found


def traces_of(experiments: Iterable[Experiment]) -> list[str]:
    """The trace files that the experiments' workloads name."""
    return [str(stream.path) for each in experiments for stream in _traces(each)]


def _traces(experiment: Experiment) -> list[TraceStream]:
    source = experiment.source
    streams = source.workload.streams if isinstance(source, WorkloadSource) else ()
    return [stream for stream in streams if isinstance(stream, TraceStream)]
