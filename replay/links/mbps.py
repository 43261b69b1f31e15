"""Capacity from a list of bandwidths in 10^6 bits per second, one per line."""

from __future__ import annotations

from array import array

from replay.links.trace import Capacity, LinkTrace
from replay.readers.lines import Lines, TraceError

MOST_MBPS = 1e7
"""Ten terabits per second; a number above this can't be a bandwidth."""

_EXPECTED = "a bandwidth in Mbps"


def read(lines: Lines, interval_s: float | None = None) -> LinkTrace:
    """Reads a whole list; each bandwidth holds for `interval_s`, by default a second.

    Raises:
        TraceError: The lines aren't numbers from 0, or all of them are 0.
    """
    interval_ns = round((interval_s or 1.0) * 1e9)
    sizes = array("q")
    due, given = 0.0, 0
    for line in lines:
        mbps = lines.number_from_0(line.strip(), "the bandwidth")
        if mbps > MOST_MBPS:
            raise lines.error(f"the bandwidth is {line.strip()}", f"at most {MOST_MBPS:g} Mbps")
        # Fractions of bytes carry over.
        due += mbps * interval_ns / 8e3
        sizes.append(round(due) - given)
        given = round(due)
    if not any(sizes):
        found = "the link carries nothing" if sizes else "the file is empty"
        raise TraceError(lines.path, None, found, f"{_EXPECTED} above 0 on some line")
    starts_ns = range(0, len(sizes) * interval_ns, interval_ns)
    return LinkTrace(capacity=Capacity(starts_ns, sizes, len(sizes) * interval_ns))
