"""What is done to the times of a trace: put in order, cut, thinned or repeated, sped up."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator

from replay.readers.entry import TraceEntry
from replay.readers.lines import Lines

_EARLIEST_NS = -(1 << 80)
"""Before every date, of which those before 1970 are negative."""


def in_order(entries: Iterable[TraceEntry], lines: Lines) -> Iterator[TraceEntry]:
    """The same entries.

    Raises:
        TraceError: One is before the one before it.
    """
    latest_ns = _EARLIEST_NS
    for entry in entries:
        if entry.at_ns < latest_ns:
            raise _unsorted(lines, latest_ns - entry.at_ns, "none earlier than the one before it")
        latest_ns = entry.at_ns
        yield entry


def sorted_within(
    entries: Iterable[TraceEntry], window_ns: int, lines: Lines
) -> Iterator[TraceEntry]:
    """The entries in order of time; those of one window are held in memory.

    Raises:
        TraceError: One is earlier than the latest so far by more than the window.
    """
    held: list[tuple[int, int, TraceEntry]] = []
    latest_ns = _EARLIEST_NS
    for order, entry in enumerate(entries):
        latest_ns = max(latest_ns, entry.at_ns)
        if entry.at_ns < latest_ns - window_ns:
            expected = f"none by more than the sort window of {window_ns / 1e9:g} s"
            raise _unsorted(lines, latest_ns - entry.at_ns, expected)
        heapq.heappush(held, (entry.at_ns, order, entry))
        # An entry at just the edge of the window may still come, but only after these.
        while held[0][0] <= latest_ns - window_ns:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]


def _unsorted(lines: Lines, back_ns: int, expected: str) -> Exception:
    back_s = back_ns / 1e9
    found = f"an arrival {back_s:g} s before an earlier line's"
    mended = f"a sort window in a workload, sort_window_s: {back_s:g} or more, would mend it"
    return lines.error(found, f"{expected} ({mended})")


def from_zero(entries: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
    """The entries, counted from the first."""
    start_ns: int | None = None
    for entry in entries:
        if start_ns is None:
            start_ns = entry.at_ns
        yield TraceEntry(entry.at_ns - start_ns, *entry[1:])


def sliced(
    entries: Iterable[TraceEntry], start_ns: int, end_ns: int | None
) -> Iterator[TraceEntry]:
    """The entries from `start_ns` to before `end_ns`, counted from there; reads no further."""
    for entry in entries:
        if end_ns is not None and entry.at_ns >= end_ns:
            return
        if entry.at_ns >= start_ns:
            yield TraceEntry(entry.at_ns - start_ns, *entry[1:])


def scaled(
    entries: Iterable[TraceEntry], factor: float, chance: random.Random
) -> Iterator[TraceEntry]:
    """Each entry `factor` times on average: left out by chance below 1, repeated above.

    A copy comes at random between its original and the next entry, so that repeating does not
    make bursts that the trace does not have.
    """
    sure, share = int(factor), factor % 1.0
    before: TraceEntry | None = None
    for entry in entries:
        if before is not None:
            yield from _copies(before, entry.at_ns, sure + (chance.random() < share), chance)
        before = entry
    if before is not None:
        yield from _copies(before, before.at_ns, sure + (chance.random() < share), chance)


def _copies(
    entry: TraceEntry, next_ns: int, count: int, chance: random.Random
) -> Iterator[TraceEntry]:
    if count:
        yield entry
    gap_ns = next_ns - entry.at_ns
    for shift_ns in sorted(int(chance.random() * gap_ns) for _ in range(count - 1)):
        yield TraceEntry(entry.at_ns + shift_ns, *entry[1:])


def sped_up(entries: Iterable[TraceEntry], speed: float) -> Iterator[TraceEntry]:
    """The entries, `speed` times as fast; their deadlines stay as far away as they were."""
    over, under = speed.as_integer_ratio()
    for entry in entries:
        yield TraceEntry(entry.at_ns * under // over, *entry[1:])
