"""Opening a trace of any known format."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from replay.readers import (
    azure_functions,
    azure_llm,
    deadlines,
    mooncake,
    rates,
    timestamps,
    timing,
)
from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, TraceError, open_lines, shown

FORMATS: dict[str, TraceFormat] = {
    each.name: each
    for each in (
        azure_llm.FORMAT,
        azure_functions.FORMAT,
        deadlines.FORMAT,
        mooncake.FORMAT,
        rates.FORMAT,
        timestamps.FORMAT,
        *timestamps.OF_NUMBERS,
    )
}
"""The known formats by name; a first line is tested against each in this order."""


@dataclass(frozen=True, slots=True)
class _Options:
    speed: float
    rate_scale: float
    slice_s: tuple[float, float | None]
    sort_window_s: float
    seed: int | str

    def __post_init__(self) -> None:
        timing.check(self.slice_s, self.rate_scale, self.speed)
        if not (math.isfinite(self.sort_window_s) and self.sort_window_s >= 0):
            raise ValueError(f"sort_window_s is a number from 0, not {self.sort_window_s!r}")


_OTHER_MARKS = (";", "\t", "|")
"""Separators that some files use between columns in place of a comma."""


def open_trace(
    path: Path | str,
    format: str | None = None,
    *,
    speed: float = 1.0,
    rate_scale: float = 1.0,
    slice_s: tuple[float, float | None] = (0.0, None),
    sort_window_s: float = 0.0,
    seed: int | str = 0,
) -> Iterator[TraceEntry]:
    """Reads a trace as a stream, in order of time; the file stays open while it is being read.

    The steps are, in this order: sort, cut out the slice, scale the rate, speed up. A last line
    without a line end counts if it is complete, since some published traces end that way.

    Args:
        path: A file, plain or gzip, or a pipe.
        format: One of `FORMATS`; None recognises it by the first line.
        speed: How much faster to replay; deadlines keep their budgets.
        rate_scale: The factor on the number of arrivals. Below 1, random arrivals are left out;
            above 1, arrivals are repeated between their neighbours.
        slice_s: The seconds of the trace to read, from and up to; None is its end. The slice's
            start is time 0.
        sort_window_s: How far an arrival may be out of order. The arrivals of one window are held
            in memory.
        seed: The same seed gives the same arrivals.

    Raises:
        ValueError: An option is out of range or the format isn't known.
        TraceError: The file can't be read as a trace. Raised on reaching the entry concerned.
    """
    options = _Options(speed, rate_scale, slice_s, sort_window_s, seed)
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown trace format {format!r}; known are {', '.join(FORMATS)}")
    return _entries(path, format, options)


def format_of(path: Path | str) -> str:
    """The format of a trace, recognised by its first line.

    Raises:
        TraceError: The file can't be read, or is of no known format.
    """
    with open_lines(path) as lines:
        return _recognised(lines).name


def read_lines(
    lines: Lines, format: str | None = None, seed: int | str = 0
) -> Iterator[TraceEntry]:
    """The entries of a trace as they are in the file, in any order and counted from any time.

    Raises:
        TraceError: As in `open_trace`.
    """
    chosen = FORMATS[format] if format else _recognised(lines)
    return chosen.read(lines, random.Random(f"{seed} arrivals"))


def _entries(path: Path | str, format: str | None, options: _Options) -> Iterator[TraceEntry]:
    with open_lines(path) as lines:
        chosen = FORMATS[format] if format else _recognised(lines)
        if lines.peek() is None:
            raise TraceError(lines.path, None, "the file is empty", chosen.looks_like)
        some = False
        for entry in _timed(lines, chosen, options):
            some = True
            yield entry
        if not some:
            raise TraceError(lines.path, None, _emptiness(options), "at least one")


def _timed(lines: Lines, chosen: TraceFormat, options: _Options) -> Iterator[TraceEntry]:
    entries = chosen.read(lines, random.Random(f"{options.seed} arrivals"))
    if options.sort_window_s:
        entries = timing.sorted_within(entries, round(options.sort_window_s * 1e9), lines)
    else:
        entries = timing.in_order(entries, lines)
    if chosen.from_first:
        entries = timing.from_zero(entries)
    return timing.retimed(
        timing.within_reach(entries, lines),
        timing.entry_at,
        random.Random(f"{options.seed} scale"),
        slice_s=options.slice_s,
        rate_scale=options.rate_scale,
        speed=options.speed,
    )


def _emptiness(options: _Options) -> str:
    start_s, end_s = options.slice_s
    left = f" that a rate scale of {options.rate_scale:g} leaves" if options.rate_scale < 1 else ""
    if (start_s, end_s) == (0, None):
        return f"no arrivals{left}"
    until = "the end" if end_s is None else f"{end_s:g} s"
    return f"no arrivals from {start_s:g} s to {until}{left}"


def _recognised(lines: Lines) -> TraceFormat:
    first = lines.peek()
    known = "".join(f"\n  {name}: {each.looks_like}" for name, each in FORMATS.items())
    if first is None:
        raise TraceError(lines.path, None, "the file is empty", f"one of these formats{known}")
    if like := _like(first):
        return like
    for mark in _OTHER_MARKS:
        if like := _like(first.replace(mark, ",")):
            found = f"columns of {like.name} with {mark!r} between them"
            raise lines.error(found, f"commas: {like.looks_like}")
    found = f"a first line of no known format, {shown(first)}"
    raise lines.error(found, f"one of these formats{known}")


def _like(first: str) -> TraceFormat | None:
    return next((each for each in FORMATS.values() if each.recognises(first)), None)
