"""Arrival times and nothing else, one per line, as dates or as numbers in some unit.

A bare number has no unit, and might as well be a rate. So the caller's choice of format gives the
unit, or a header line such as `timestamp_ms` does. The origin of the times makes no difference,
since the first arrival is time 0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial

from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, is_number, shown
from replay.readers.moments import EXAMPLE, Moments, is_moment

_UNITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""The power of ten that turns each unit into nanoseconds."""

_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_NUMBER = re.compile(r"(\d{1,21})(?:\.(\d{1,30}))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][\w ()\[\].-]*", re.ASCII)
_LARGEST_NS = 10**21
"""31,000 years."""


def read(lines: Lines, chance: random.Random, unit: str | None = None) -> Iterator[TraceEntry]:
    """One entry per line.

    Args:
        lines: What to read.
        chance: Not used.
        unit: The unit of numbers; None expects a first line that names it.
    """
    del chance
    first = _cell(lines.peek() or "")
    if first and not (first[0].isdigit() or is_number(first)):
        unit = _headed(lines, next(lines), unit)
    parse: Callable[[str], int] | None = None
    for line in lines:
        text = _cell(line)
        if parse is None:
            parse = _parser(lines, text, unit)
        yield TraceEntry(parse(text))


def _cell(line: str) -> str:
    return line.strip().strip('"')


def _headed(lines: Lines, line: str, unit: str | None) -> str | None:
    """The unit, once the header line above the times has been read."""
    if "," in line:
        raise lines.error(f"several columns, {shown(line)}", "one, of times")
    named = _unit_in(line)
    if unit is not None and named not in (None, unit):
        raise lines.error(f"{shown(line)} above times that are said to be in {unit}", "one of them")
    return unit or named


def _unit_in(line: str) -> str | None:
    """The unit at the end of a column's name, e.g. `arrival_ms` or `time (s)`."""
    *before, word = re.split(r"[^a-z]+", line.lower().rstrip('"]) '))
    # `rate_per_s` and `requests_1s` are counts per second, not times.
    is_rate = before[-1:] == ["per"] or re.search(rf"\d\s*{word}\W*$", line.lower()) is not None
    return word if word in _UNITS and len(line) > len(word) and not is_rate else None


def _parser(lines: Lines, first: str, unit: str | None) -> Callable[[str], int]:
    """The parser for all times, chosen by the first of them."""
    if unit is None and is_moment(first):
        return Moments(lines, "the time").ns
    if unit is None and _NUMBER.fullmatch(first):
        formats = ", ".join(f"timestamps-{each}" for each in _UNITS)
        wanted = f"the format {formats}, or a line above that names it, as timestamp_ms"
        raise lines.error(f"the time is {shown(first)}, a number without a unit", wanted)
    return partial(_ns, lines, unit)


def _ns(lines: Lines, unit: str | None, text: str) -> int:
    match = _NUMBER.fullmatch(text)
    if unit is None or match is None:
        wanted = f"one like {EXAMPLE}" if unit is None else f"{_WORDS[unit]} from 0"
        raise lines.error(f"the time is {shown(text)}", wanted)
    whole, fraction = match.groups(default="")
    digits = _UNITS[unit]
    at_ns: int = int(whole) * 10**digits + int(fraction[:digits].ljust(digits, "0") or "0")
    if at_ns > _LARGEST_NS:
        raise lines.error(f"the time is {shown(text)} {_WORDS[unit]}", "one within 31,000 years")
    return at_ns


def _recognises(line: str) -> bool:
    text = _cell(line)
    if _NAME.fullmatch(text) is None:
        return is_moment(text)
    return _unit_in(text) is not None or re.search("time|arriv", text.lower()) is not None


FORMAT = TraceFormat(
    name="timestamps",
    looks_like=f"{EXAMPLE}, a date and a time a line",
    recognises=_recognises,
    read=read,
)

OF_NUMBERS = [
    TraceFormat(
        name=f"timestamps-{unit}",
        looks_like=f"{word}, a number a line",
        recognises=lambda line: False,
        read=partial(read, unit=unit),
    )
    for unit, word in _WORDS.items()
]
"""They look like rates and like each other, so they are used only when asked for by name."""
