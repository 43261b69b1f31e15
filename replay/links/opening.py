"""Opens a recording of a link in any known format."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from replay.links import mahimahi, mbps, ping
from replay.links.trace import LinkTrace, join
from replay.readers.lines import Lines, TraceError, open_lines, shown

LINK_FORMATS: dict[str, Callable[[Lines, float | None], LinkTrace]] = {
    "ping": ping.read,
    "mahimahi": mahimahi.read,
    "mbps": mbps.read,
}
"""The known formats by name."""

_LOOK = 1000
"""The most lines that are read to recognise a format."""

_SURE = 50
"""At least this many non-decreasing whole numbers are taken for times rather than bandwidths."""

_KNOWN = "the output of ping, a mahimahi file (rising ms, one a line) or a list of Mbps, one a line"


def open_link(
    path: Path | str, format: str | None = None, *, interval_s: float | None = None
) -> LinkTrace:
    """Reads a recording of a link into memory.

    Mahimahi's files and lists of bandwidths both consist of numbers. A fraction or a decrease
    means bandwidths; 50 or more whole numbers that rise and never decrease are mahimahi's. In all
    other cases the format has to be given.

    Args:
        path: A file, plain or gzip.
        format: One of `LINK_FORMATS`; None recognises it by the first lines.
        interval_s: Seconds between the samples, for ping and mbps.

    Raises:
        ValueError: The format isn't known, or the interval is out of range or not for this format.
        TraceError: The file can't be read as the recording of a link.
    """
    if format is not None and format not in LINK_FORMATS:
        raise ValueError(f"unknown link format {format!r}; known are {', '.join(LINK_FORMATS)}")
    if interval_s is not None and not (math.isfinite(interval_s) and interval_s > 0):
        raise ValueError(f"interval_s is a number above 0, not {interval_s!r}")
    form = format or link_format(path)
    with open_lines(path) as lines:
        return LINK_FORMATS[form](lines, interval_s)


def open_links(
    paths: Sequence[Path | str], format: str | None = None, *, interval_s: float | None = None
) -> LinkTrace:
    """Reads a recording of a link, or one of its delay and one of its capacity.

    Args:
        paths: One or two files.
        format: As in `open_link`. Of two files one is ping's, which is always recognised; the
            format is then that of the other one.
        interval_s: As in `open_link`. Of two files it is for those that aren't mahimahi's, which
            has times of its own.

    Raises:
        ValueError: As in `open_link` and `join`.
        TraceError: As in `open_link`.
    """
    if len(paths) == 1:
        return open_link(paths[0], format, interval_s=interval_s)
    traces = []
    for path in paths:
        told_itself = format is None or format == "ping" or _is_ping(path)
        form = link_format(path) if told_itself else format
        traces.append(open_link(path, form, interval_s=None if form == "mahimahi" else interval_s))
    try:
        return join(*traces)
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None


def link_format(path: Path | str) -> str:
    """The format of a recording, recognised by its first lines: one of `LINK_FORMATS`.

    Raises:
        TraceError: The format can't be recognised.
    """
    with open_lines(path) as lines:
        return _recognised(lines)


def _is_ping(path: Path | str) -> bool:
    with open_lines(path) as lines:
        return _begins_ping(lines.peek() or "")


def _begins_ping(first: str) -> bool:
    return first.startswith("PING ") or "seq=" in first or "seq " in first


def _recognised(lines: Lines) -> str:
    first = lines.peek()
    if first is None:
        raise TraceError(lines.path, None, "the file is empty", _KNOWN)
    if _begins_ping(first):
        return "ping"
    numbers: list[float] = []
    for line in lines:
        try:
            numbers.append(float(line))
        except ValueError:
            # The reader of the format reports the line, unless it is the first.
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
