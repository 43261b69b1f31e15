"""Operations on the times of a trace: sort, cut, thin out or repeat, speed up."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from replay.readers.entry import TraceEntry
from replay.readers.lines import Lines
from replay.simulator import NEVER_NS

LATEST_S = 10**12
"""The latest second at which a slice may begin or end: 31,700 years."""

MOST_COPIES = 1_000_000
"""The most copies of an entry; the copies of one entry are in memory together."""

_EARLIEST_NS = -(1 << 80)
"""Earlier than every date; dates before 1970 are negative."""


class Timed(Protocol):
    """An entry of a trace, or a request of a journal."""

    @property
    def at_ns(self) -> int:
        """The arrival time."""


T = TypeVar("T", bound=Timed)

Move = Callable[[T, int], T]
"""Makes the same entry with another time."""


def entry_at(entry: TraceEntry, at_ns: int) -> TraceEntry:
    """Moves an entry to another time."""
    return TraceEntry(at_ns, *entry[1:])


def in_order(entries: Iterable[TraceEntry], lines: Lines) -> Iterator[TraceEntry]:
    """The same entries, checked to be in order of time.

    Raises:
        TraceError: An entry is earlier than the one before it.
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
    """The entries in order of time; the entries of one window are held in memory.

    Raises:
        TraceError: An entry is earlier than the latest so far by more than the window.
    """
    held: list[tuple[int, int, TraceEntry]] = []
    latest_ns = _EARLIEST_NS
    for order, entry in enumerate(entries):
        latest_ns = max(latest_ns, entry.at_ns)
        if entry.at_ns < latest_ns - window_ns:
            expected = f"none by more than the sort window of {window_ns / 1e9:g} s"
            raise _unsorted(lines, latest_ns - entry.at_ns, expected)
        heapq.heappush(held, (entry.at_ns, order, entry))
        # An entry exactly at the edge of the window may still arrive, but it sorts after these.
        while held and held[0][0] <= latest_ns - window_ns:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]


def _unsorted(lines: Lines, back_ns: int, expected: str) -> Exception:
    back_s = back_ns / 1e9
    found = f"an arrival {back_s:g} s before an earlier line's"
    way = f"set a sort window in a workload, sort_window_s: {back_s:g} or more"
    return lines.error(found, f"{expected} (sort the file, or {way})")


def from_zero(entries: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
    """The entries, with time counted from the first."""
    start_ns: int | None = None
    for entry in entries:
        if start_ns is None:
            start_ns = entry.at_ns
        yield entry_at(entry, entry.at_ns - start_ns)


def within_reach(entries: Iterable[TraceEntry], lines: Lines) -> Iterator[TraceEntry]:
    """The same entries, with times from 0, checked to come and be due in a time to be played.

    Raises:
        TraceError: An entry comes, or is due, too late.
    """
    for entry in entries:
        if entry.at_ns + (entry.budget_ns or 0) >= NEVER_NS:
            what = "an arrival" if entry.at_ns >= NEVER_NS else "a deadline"
            raise lines.error(f"{what} 146 years after the start or later", "an earlier one")
        yield entry


def is_slice(start_s: float, end_s: float | None) -> bool:
    """Whether a slice is from a second to a later one, or to the end if that is None."""
    return 0 <= start_s < (LATEST_S if end_s is None else end_s) <= LATEST_S


def check(slice_s: tuple[float, float | None], rate_scale: float, speed: float) -> None:
    """Refuses options that `retimed` can't handle.

    Raises:
        ValueError: An option is out of range.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"speed is a number above 0, not {speed!r}")
    if not 0 < rate_scale <= MOST_COPIES:
        most = f"at most {MOST_COPIES:,}"
        raise ValueError(f"rate_scale is a number above 0 and {most}, not {rate_scale!r}")
    if not is_slice(*slice_s):
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
    """Cuts a slice, counts time from its start, scales the rate and speeds up, in this order.

    Args:
        entries: The entries, in order of time.
        move: Changes the time of an entry.
        chance: Decides what is left out or repeated, and where.
        slice_s: As in `open_trace`, like the rest; nothing beyond its end is read.
        rate_scale: How many times each entry appears on average.
        speed: The factor by which times are shortened.
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
    """Each entry `factor` times on average: randomly left out below 1, repeated above.

    A copy is placed at random between its original and the next entry, so that repeating does not
    create bursts that the trace does not have.
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
    """Shortens the times; the budgets stay as they were."""
    over, under = speed.as_integer_ratio()
    for entry in entries:
        yield move(entry, entry.at_ns * under // over)
