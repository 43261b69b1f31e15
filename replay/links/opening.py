"""Opening a recording of a link, of any known format."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from replay.links import mahimahi, mbps, ping
from replay.links.trace import LinkTrace
from replay.readers.lines import Lines, TraceError, open_lines, shown

LINK_FORMATS: dict[str, Callable[[Lines, float | None], LinkTrace]] = {
    "ping": ping.read,
    "mahimahi": mahimahi.read,
    "mbps": mbps.read,
}
"""The known formats by name."""

_LOOK = 1000
"""So many lines are looked at to tell a format."""

_SURE = 50
"""So many whole numbers that never go back are taken for times and not for bandwidths."""

_KNOWN = "the output of ping, a mahimahi file (rising ms, one a line) or a list of Mbps, one a line"


def open_link(
    path: Path | str, format: str | None = None, *, interval_s: float | None = None
) -> LinkTrace:
    """Reads a recording of a link into memory.

    Mahimahi's files and lists of bandwidths are both numbers. A fraction or a step back is one of
    bandwidths; 50 or more whole numbers that rise and never go back are mahimahi's; anything else
    has to be named.

    Args:
        path: A file, plain or gzip.
        format: One of `LINK_FORMATS`; None tells it by the first lines.
        interval_s: Seconds between the samples, for ping and mbps.

    Raises:
        ValueError: The format isn't known, or the interval is none for it.
        TraceError: The file can't be read as the recording of a link.
    """
    if format is not None and format not in LINK_FORMATS:
        raise ValueError(f"unknown link format {format!r}; known are {', '.join(LINK_FORMATS)}")
    if interval_s is not None and not (math.isfinite(interval_s) and interval_s > 0):
        raise ValueError(f"interval_s is a number above 0, not {interval_s!r}")
    form = format or link_format(path)
    with open_lines(path) as lines:
        return LINK_FORMATS[form](lines, interval_s)


def link_format(path: Path | str) -> str:
    """One of `LINK_FORMATS`, told by the first lines of a recording.

    Raises:
        TraceError: They don't tell.
    """
    with open_lines(path) as lines:
        return _recognised(lines)


def _recognised(lines: Lines) -> str:
    first = lines.peek()
    if first is None:
        raise TraceError(lines.path, None, "the file is empty", _KNOWN)
    if first.startswith("PING ") or "seq=" in first or "seq " in first:
        return "ping"
    numbers: list[float] = []
    for line in lines:
        try:
            numbers.append(float(line))
        except ValueError:
            # The reader of numbers will name the line, unless it is the first.
            break
        if "." in line or numbers[-1] < numbers[-2:][0]:
            return "mbps"
        if len(numbers) >= _LOOK:
            break
    if not numbers:
        raise lines.error(f"a first line {shown(first)}", _KNOWN)
    if len(numbers) >= _SURE and numbers[-1] > numbers[0]:
        return "mahimahi"
    found = "a list of numbers that may be mahimahi's times or Mbps"
    raise TraceError(
        lines.path,
        None,
        found,
        "its format to be given: mahimahi or mbps (a point, as in 8.0, says mbps)",
    )
