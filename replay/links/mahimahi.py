"""Capacity from mahimahi's packet-delivery files.

Each line is a millisecond in which one packet of 1,500 bytes can be delivered. The last line is
also the length of the file, after which it repeats. Here the bytes of a line flow evenly through
the millisecond that ends with it, so that transfer times vary smoothly with the size. A transfer
ends at most 1 ms before mahimahi would deliver its last packet.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import groupby

from replay.links.trace import Capacity, LinkTrace
from replay.readers.lines import Lines, TraceError

PACKET_BYTES = 1500
_MS_NS = 1_000_000
_EXPECTED = "the ms of a packet's delivery, a whole number"


def read(lines: Lines, interval_s: float | None = None) -> LinkTrace:
    """Reads a whole file; an interval is refused.

    Raises:
        TraceError: The lines aren't rising whole numbers, or the last one is 0.
        ValueError: An interval is given.
    """
    if interval_s is not None:
        raise ValueError("mahimahi's files are in ms: they take no interval_s")
    starts_ns, sizes = array("q"), array("q")
    at_0 = end_ms = 0
    for ms, packets in _deliveries(lines):
        if ms == 0:
            # Time 0 is also the end of the previous round.
            at_0 = packets
            continue
        if ms - 1 > end_ms:
            starts_ns.append(end_ms * _MS_NS)
            sizes.append(0)
        starts_ns.append((ms - 1) * _MS_NS)
        sizes.append(packets * PACKET_BYTES)
        end_ms = ms
    if not sizes:
        found = "the file is empty" if not at_0 else "no time above 0"
        raise TraceError(lines.path, None, found, f"on each line {_EXPECTED}")
    sizes[-1] += at_0 * PACKET_BYTES
    return LinkTrace(capacity=Capacity(starts_ns, sizes, end_ms * _MS_NS))


def _deliveries(lines: Lines) -> Iterator[tuple[int, int]]:
    for ms, same in groupby(_rising(lines)):
        yield ms, sum(1 for _ in same)


def _rising(lines: Lines) -> Iterator[int]:
    before = 0
    for line in lines:
        ms = lines.count(line.strip(), "the time")
        if ms < before:
            raise lines.error(f"{ms} ms comes after {before} ms", "times that never go back")
        before = ms
        yield ms
