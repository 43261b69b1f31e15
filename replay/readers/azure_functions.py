"""Azure Functions 2019: how often each function was called in each minute.

The published files have the columns `HashOwner,HashApp,HashFunction,Trigger,1,...,1440`. Samples of
them have the hashes in another order, no trigger, and `minute_1,...`. A row is a function, so the
earliest call may be in the last row. The counts are therefore read into memory before the first
arrival is produced: 8 bytes for each minute in which a function was called. Arrivals are then
generated lazily, minute by minute.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

from replay.readers.columns import header_cells, rows_below
from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, shown
from replay.readers.spread import spread_evenly

MOST_COUNTS = 50_000_000
"""A file with more counts above 0 than this, 400 MB in memory, is refused."""

MOST_CALLS = 50_000_000
"""More calls than this in a minute can't be a count of calls."""

_MINUTE_NS = 60_000_000_000
_LOOKS_LIKE = "HashOwner,HashApp,HashFunction,Trigger,1,...,1440"


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """Calls at random times in their minute; `source` is the function, `label` its trigger."""
    functions, minutes = _counted(lines)
    for number, (who, calls) in enumerate(minutes):
        callers = array("I")
        for function, count in zip(who, calls, strict=True):
            callers.extend(array("I", [function]) * count)
        chance.shuffle(callers)
        times = spread_evenly(len(callers), number * _MINUTE_NS, _MINUTE_NS, chance)
        for at_ns, caller in zip(times, callers, strict=True):
            source, label = functions[caller]
            yield TraceEntry(at_ns, label=label, source=source)


_Minute = tuple["array[int]", "array[int]"]


def _counted(lines: Lines) -> tuple[list[tuple[str, str | None]], list[_Minute]]:
    """The functions' names and triggers, and for each minute which were called how often."""
    header = header_cells(next(lines, ""))
    names, first, length = _layout(lines, header)
    functions: list[tuple[str, str | None]] = []
    minutes: list[_Minute] = [(array("I"), array("I")) for _ in range(length)]
    totals = [0] * length
    held = 0
    for cells in rows_below(header, lines):
        for minute, cell in enumerate(cells[first:]):
            # Nearly all cells are 0, and comparing the text is much faster than parsing it.
            if cell == "0":
                continue
            count = lines.count(cell.strip(), f"the count of minute {minute + 1}")
            if not count:
                continue
            totals[minute] += count
            if totals[minute] > MOST_CALLS:
                raise lines.error(
                    f"{totals[minute]:,} calls in minute {minute + 1}", f"{MOST_CALLS:,} at most"
                )
            minutes[minute][0].append(len(functions))
            minutes[minute][1].append(count)
            held += 1
        if held > MOST_COUNTS:
            raise lines.error(
                f"more than {MOST_COUNTS:,} counts above 0", "a part of the functions"
            )
        owner, app, function, trigger = (cells[at].strip() if at >= 0 else "" for at in names)
        functions.append((f"{owner}/{app}/{function}", trigger or None))
    return functions, minutes


def _layout(lines: Lines, header: list[str]) -> tuple[list[int], int, int]:
    """The columns of the names, the first column of the minutes, and the number of minutes."""
    places = {name: place for place, name in enumerate(header)}
    if "hashfunction" not in places:
        raise lines.error(f"no column HashFunction in {shown(','.join(header))}", _LOOKS_LIKE)
    names = [places.get(name, -1) for name in ("hashowner", "hashapp", "hashfunction", "trigger")]
    first = max(names) + 1
    minutes = [name.removeprefix("minute_") for name in header[first:]]
    if not minutes or minutes != [str(minute) for minute in range(1, len(minutes) + 1)]:
        found = f"after the names the columns {shown(','.join(header[first:]) or '(none)')}"
        raise lines.error(found, "the minutes 1,2,... or minute_1,minute_2,...")
    return names, first, len(minutes)


FORMAT = TraceFormat(
    name="azure-functions",
    looks_like=_LOOKS_LIKE,
    recognises=lambda line: "hashfunction" in header_cells(line),
    read=read,
    from_first=False,
)
