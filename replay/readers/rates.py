"""Requests per second, one number per line, the form in which the Twitter traces are shared."""

from __future__ import annotations

import random
from collections.abc import Iterator

from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, is_number
from replay.readers.spread import spread_evenly

MOST_PER_S = 1e9
"""A number above this can't be a rate of requests."""

_SECOND_NS = 1_000_000_000


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """Arrivals at random times in their second; fractions of a rate carry over to later seconds."""
    due = 0.0
    for second, line in enumerate(lines):
        if not second:
            first = lines.number
        elif lines.number != first + second:
            raise lines.error("a blank line before it", "a rate for each second, 0 where none came")
        rate = lines.number_from_0(line.strip(), "the rate")
        if rate > MOST_PER_S:
            hint = "if these are times, give their unit with --format"
            wanted = f"at most {MOST_PER_S:g} per second ({hint})"
            raise lines.error(f"the rate is {line.strip()}", wanted)
        due += rate
        count = int(due + 1e-9)
        due -= count
        for at_ns in spread_evenly(count, second * _SECOND_NS, _SECOND_NS, chance):
            yield TraceEntry(at_ns)


FORMAT = TraceFormat(
    name="rates",
    looks_like="requests per second, one number a line",
    recognises=is_number,
    read=read,
    from_first=False,
)
