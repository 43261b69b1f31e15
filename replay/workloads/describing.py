"""Workloads described in YAML.

A workload is one stream, or a list of `streams`:

    seconds: 60                      # or requests: 10000, or both
    process: gamma                   # or another one of `_ALL_PROCESSES`
    cv: 4                            # the process's own keys
    rate_per_s: 200                  # or load: 0.9, a share of the targets' capacity
    mix:
      - {model: digits, share: 3, deadline_ms: {uniform: [30, 100]}, size_bytes: 784}
      - {model: faces, variant: int8, deadline_ms: 50, priority: 1, weight: 2.0}
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from replay.readers import FORMATS
from replay.readers.timing import LATEST_S, is_slice
from replay.workloads.clients import ClientStream
from replay.workloads.errors import WorkloadError
from replay.workloads.keys import MOST, Keys, is_number, nearest
from replay.workloads.mix import Mix, MixEntry
from replay.workloads.processes import PROCESSES
from replay.workloads.workload import Stream, TraceStream, Workload
from scheduler.config.problems import read_yaml_file
from scheduler.core.requests import DEFAULT_PRIORITY, LOWEST_PRIORITY

_ALL_PROCESSES = (*PROCESSES, "clients", "trace")
_MOST = 10**12
_MOST_CLIENTS = 100_000
_LEAST_RATE = 1e-6


def load_workload(path: Path | str, requests: int | None = None) -> Workload:
    """Reads a description; relative paths in it start from its folder.

    Raises:
        ConfigError: The file can't be read, or is no mapping of keys to values.
        WorkloadError: It isn't a workload; the message names the key.
    """
    data, _ = read_yaml_file(Path(path))
    return parse_workload(data, str(path), Path(path).parent, requests)


def parse_workload(
    data: object,
    source: str = "workload",
    folder: Path | str = ".",
    requests: int | None = None,
) -> Workload:
    """A workload from the mapping that describes it.

    Args:
        data: The mapping.
        source: What errors call it.
        folder: The folder from which relative paths of traces start.
        requests: The most requests, in place of the number in the mapping.

    Raises:
        WorkloadError: The mapping isn't a workload; the message names the key.
    """
    wanted = "a mapping with process and mix"
    keys = Keys(data, source, "", f"{wanted}, or with streams")
    seconds = keys.number("seconds", "seconds above 0") if "seconds" in keys else None
    own = keys.whole("requests", "a whole number from 1", 0, 1, _MOST)
    requests = requests or own or None
    keys.take("seconds")
    streams: list[Stream | TraceStream | ClientStream] = []
    if "streams" in keys:
        for place, item in keys.items("streams", f"a list of {wanted}"):
            inner = Keys(item, source, place, wanted)
            streams.append(_stream(inner, Path(folder)))
            inner.finish()
    else:
        streams.append(_stream(keys, Path(folder)))
    keys.finish()
    waiting = any(isinstance(each, ClientStream) for each in streams)
    if waiting and len(streams) > 1:
        raise WorkloadError(f"{source}: a stream of clients must be the only stream")
    endless = waiting or any(isinstance(each, Stream) and each.end_s is None for each in streams)
    if endless and seconds is None and requests is None:
        raise WorkloadError(f"{source} has no end; give it seconds or requests")
    return Workload(tuple(streams), seconds, requests)


def _stream(keys: Keys, folder: Path) -> Stream | TraceStream | ClientStream:
    name = keys.take("process")
    if not isinstance(name, str):
        raise keys.wrong("process", f"one of {', '.join(_ALL_PROCESSES)}")
    if name not in _ALL_PROCESSES:
        hint = nearest(name, _ALL_PROCESSES)
        raise keys.problem("process", f"should be a known process, not {name!r}; {hint}")
    mix = _mix(keys, traced=name == "trace")
    if name == "clients":
        return _clients(keys, mix)
    return _trace(keys, mix, folder) if name == "trace" else _process(keys, name, mix)


def _clients(keys: Keys, mix: Mix) -> ClientStream:
    if not (count := keys.whole("clients", "how many there are, from 1", 0, 1, _MOST_CLIENTS)):
        raise keys.wrong("clients", "how many there are, from 1")
    think_ms = keys.amount("think_ms", "ms", zero=True)
    return ClientStream(count, mix) if think_ms is None else ClientStream(count, mix, think_ms)


def _process(keys: Keys, name: str, mix: Mix) -> Stream:
    kind = PROCESSES[name]
    options: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = keys.take(field.name)
        if value is None and field.default is not dataclasses.MISSING:
            continue
        whole = field.type == "int"
        if not is_number(value) or (whole and not isinstance(value, int)):
            raise keys.wrong(field.name, f"a {'whole number' if whole else 'number'} for {name}")
        if value > MOST:
            raise keys.problem(field.name, f"should be at most {MOST:g}; got {value:g}")
        options[field.name] = value
    try:
        process = kind(**options)
    except ValueError as error:
        raise WorkloadError(f"{keys}: {error}") from None
    cameras = options.get("cameras")
    if cameras and (unsent := mix.unsent(cameras)):
        raise keys.problem(
            "cameras",
            f"should be enough that each kind of the mix has one: with {cameras}, none would send "
            f"{', '.join(unsent)}; {mix.enough_senders()} are enough",
        )
    rate, load = _rate(keys, cameras)
    start_s = keys.number("start_s", "seconds from 0", 0.0, zero=True)
    end_s = keys.number("end_s", "seconds above 0") if "end_s" in keys else None
    keys.take("end_s")
    if end_s is not None and end_s <= start_s:
        raise keys.wrong("end_s", f"after start_s, which is {start_s:g}")
    return Stream(process, mix, rate, load, start_s, end_s)


def _rate(keys: Keys, cameras: int | None) -> tuple[float | None, float | None]:
    ways = ["rate_per_s", "load", *(["fps"] if cameras else [])]
    given = [way for way in ways if keys.take(way) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        hint = keys.misspelt(*ways) if not given else ""
        raise WorkloadError(f"{keys} should have one of {', '.join(ways)}; it has {got}{hint}")
    value = keys.number(given[0], "a number above 0")
    if value < _LEAST_RATE:
        raise keys.problem(given[0], f"should be at least {_LEAST_RATE:g}; got {value:g}")
    if given[0] == "load":
        return None, value
    return value * (cameras or 1) if given[0] == "fps" else value, None


def _trace(keys: Keys, mix: Mix, folder: Path) -> TraceStream:
    path = keys.text("path", "the file of the trace", required=True)
    format = keys.text("format", f"one of {', '.join(FORMATS)}")
    if format is not None and format not in FORMATS:
        hint = nearest(format, FORMATS)
        raise keys.problem("format", f"should be a known format, not {format!r}; {hint}")
    return TraceStream(
        folder / str(path),
        mix,
        format,
        keys.number("speed", "a number above 0", 1.0),
        keys.number("rate_scale", "a number above 0", 1.0),
        _slice(keys),
        keys.number("sort_window_s", "seconds from 0", 0.0, zero=True),
    )


def _slice(keys: Keys) -> tuple[float, float | None]:
    value = keys.take("slice")
    if value is None:
        return 0.0, None
    wanted = f"[START, END] in seconds with 0 <= START < END <= {LATEST_S:g}; END may be null"
    if not isinstance(value, list) or len(value) != 2 or not is_number(value[0]):
        raise keys.wrong("slice", wanted)
    start_s, end_s = value
    if not (end_s is None or is_number(end_s)):
        raise keys.wrong("slice", wanted)
    if not is_slice(start_s, end_s):
        raise keys.wrong("slice", wanted)
    return float(start_s), None if end_s is None else float(end_s)


def _mix(keys: Keys, *, traced: bool) -> Mix:
    wanted = "a list of kinds of requests, as [{model: digits, deadline_ms: 50}]"
    entries = []
    for place, item in keys.items("mix", wanted):
        inner = Keys(item, keys.source, place, "a mapping, as {model: digits, deadline_ms: 50}")
        entries.append(_entry(inner, traced))
    return Mix(entries)


def _entry(keys: Keys, traced: bool) -> MixEntry:
    priorities = f"a whole number from 0, which is served first, to {LOWEST_PRIORITY}"
    label = "a label of the trace, in quotes if it is a number"
    entry = MixEntry(
        model=str(keys.text("model", "the name of a model", required=True)),
        variant=keys.text("variant", "the name of a variant"),
        share=keys.number("share", "a number above 0", 1.0),
        deadline_ms=keys.amount("deadline_ms", "ms"),
        deadline_scale=keys.amount("deadline_scale", "a multiple of the base latency"),
        priority=keys.whole("priority", priorities, DEFAULT_PRIORITY, 0, LOWEST_PRIORITY),
        weight=keys.number("weight", "a number above 0", 1.0),
        size_bytes=keys.amount("size_bytes", "bytes", zero=True),
        accept_late=keys.flag("accept_late"),
        label=keys.text("label", label) if traced else None,
    )
    keys.finish()
    deadlines = [way for way in ("deadline_ms", "deadline_scale") if way in keys]
    if len(deadlines) == 2 or not (deadlines or traced):
        got = "both" if deadlines else "none"
        raise WorkloadError(f"{keys} should have deadline_ms or deadline_scale; it has {got}")
    return entry
