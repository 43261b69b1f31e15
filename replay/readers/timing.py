"""What is done to the times of a trace: put in order, cut, thinned or repeated, sped up."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from replay.readers.entry import TraceEntry
from replay.readers.lines import Lines

MOST_COPIES = 1_000_000
"""Of an entry: those of one gap are in memory together."""

_EARLIEST_NS = -(1 << 80)
"""Before every date, of which those before 1970 are negative."""


class Timed(Protocol):
    """An entry of a trace, or a request of a journal."""

    @property
    def at_ns(self) -> int:
        """When it came."""


T = TypeVar("T", bound=Timed)

Move = Callable[[T, int], T]
"""The same at another time."""


def entry_at(entry: TraceEntry, at_ns: int) -> TraceEntry:
    """Moves an entry."""
    return TraceEntry(at_ns, *entry[1:])


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
        while held and held[0][0] <= latest_ns - window_ns:
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
        yield entry_at(entry, entry.at_ns - start_ns)


def check(slice_s: tuple[float, float | None], rate_scale: float, speed: float) -> None:
    """Refuses what `retimed` can't do.

    Raises:
        ValueError: One is out of range.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"speed is a number above 0, not {speed!r}")
    if not 0 < rate_scale <= MOST_COPIES:
        most = f"at most {MOST_COPIES:,}"
        raise ValueError(f"rate_scale is a number above 0 and {most}, not {rate_scale!r}")
    start_s, end_s = slice_s
    if not 0 <= start_s < (math.inf if end_s is None else end_s):
        raise ValueError(f"a slice is from a second to a later one, not {slice_s!r}")


def retimed(
    entries: Iterable[T],
    move: Move[T],
    chance: random.Random,
    *,
    slice_s: tuple[float, float | None] = (0.0, None),
    rate_scale: float = 1.0,
    speed: float = 1.0,
) -> Iterator[T]:
    """The entries of a slice, counted from its start, scaled in rate, and sped up, in this order.

    Args:
        entries: In order of time.
        move: How to change when one came.
        chance: What is left out or repeated, and where.
        slice_s: As in `open_trace`, like the rest; reads no further than its end.
        rate_scale: How often each comes on average.
        speed: By how much sooner each comes.
    """
    cut = _sliced(entries, move, slice_s) if slice_s != (0.0, None) else iter(entries)
    some = _scaled(cut, move, chance, rate_scale) if rate_scale != 1 else cut
    return _sped_up(some, move, speed) if speed != 1 else some


def _sliced(
    entries: Iterable[T], move: Move[T], slice_s: tuple[float, float | None]
) -> Iterator[T]:
    start_ns = round(slice_s[0] * 1e9)
    end_ns = None if slice_s[1] is None else round(slice_s[1] * 1e9)
    for entry in entries:
        if end_ns is not None and entry.at_ns >= end_ns:
            return
        if entry.at_ns >= start_ns:
            yield move(entry, entry.at_ns - start_ns)


def _scaled(
    entries: Iterable[T], move: Move[T], chance: random.Random, factor: float
) -> Iterator[T]:
    """Each entry `factor` times on average: left out by chance below 1, repeated above.

    A copy comes at random between its original and the next entry, so that repeating does not
    make bursts that the trace does not have.
    """

    def times() -> int:
        return int(factor) + (chance.random() < factor % 1.0)

    before: T | None = None
    for entry in entries:
        if before is not None:
            yield from _copies(before, move, chance, times(), entry.at_ns)
        before = entry
    if before is not None:
        yield from _copies(before, move, chance, times(), before.at_ns)


def _copies(
    entry: T, move: Move[T], chance: random.Random, count: int, next_ns: int
) -> Iterator[T]:
    if count:
        yield entry
    gap_ns = next_ns - entry.at_ns
    for shift_ns in sorted(int(chance.random() * gap_ns) for _ in range(count - 1)):
        yield move(entry, entry.at_ns + shift_ns)


def _sped_up(entries: Iterable[T], move: Move[T], speed: float) -> Iterator[T]:
    """Their deadlines stay as far away as they were."""
    over, under = speed.as_integer_ratio()
    for entry in entries:
        yield move(entry, entry.at_ns * under // over)
