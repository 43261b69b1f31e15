"""What the batches of one option would earn at each time at which they could start.

Time is counted in steps of a grid, with everything rounded down, so that whatever fits in reality
fits on the grid: floor(s) + floor(S) <= floor(s + S).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.bound.bids import Requests
from replay.bound.model import FAR_NS, Floats, Ints, Option

Odds = Sequence[tuple[int, float]]
"""Rooms in ns, ascending; each with the chance of finishing within a room from it to the next."""

_TIMES = 32
"""If there are more service times, this many quantiles, rounded down, stand for them."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time in steps, without the stretches in which nothing can run.

    Attributes:
        grid_ns: Length of a step.
        origin_ns: Start of the first step.
        from_ns: Starts of the stretches that are left out, ascending.
        until_ns: Their ends.
        steps: Number of steps until the last batch is done.
    """

    grid_ns: int
    origin_ns: int
    from_ns: Ints
    until_ns: Ints
    steps: int

    def at(self, at_ns: Ints) -> Ints:
        """The step in which each time lies; times outside the clock are moved to its ends."""
        at_ns = np.clip(at_ns, self.origin_ns, FAR_NS)
        past = np.searchsorted(self.until_ns, at_ns, side="right")
        begun_ns = np.minimum(at_ns, np.append(self.from_ns, FAR_NS)[past])
        out_ns = np.concatenate(([0], np.cumsum(self.until_ns - self.from_ns)))[past]
        passed: Ints = (begun_ns - out_ns - self.origin_ns) // self.grid_ns
        return np.minimum(passed, self.steps)


def make_clock(
    first_ns: Ints, end_ns: Ints, longest_ns: int, least_ns: int, fine: int, steps: int
) -> Clock:
    """A clock for requests that can be worked on in these windows.

    If no request can be worked on for longer than the longest batch takes, the rest of that time
    is left out: by then every useful batch is done.

    Args:
        first_ns: Starts of the windows.
        end_ns: Their ends.
        longest_ns: The longest service time.
        least_ns: The shortest service time.
        fine: About how many steps the shortest service time should have.
        steps: The most steps in total.
    """
    order = np.argsort(first_ns)
    begins_ns = first_ns[order]
    idle_ns = np.maximum.accumulate(end_ns[order]) + longest_ns
    gap = np.flatnonzero(begins_ns[1:] > idle_ns[:-1])
    from_ns, until_ns = idle_ns[gap], begins_ns[gap + 1]
    origin_ns = int(begins_ns[0])
    span_ns = int(idle_ns[-1]) - origin_ns - int(np.sum(until_ns - from_ns))
    grid_ns = min(least_ns, max(1, least_ns // fine, span_ns // steps))
    return Clock(grid_ns, origin_ns, from_ns, until_ns, span_ns // grid_ns + 1)


def quantiles(count: int) -> list[int]:
    """The indices of the service times, ascending, that stand for all `count` of them."""
    few = min(count, _TIMES)
    return [count * number // few for number in range(few)]


def odds_of(option: Option) -> Odds:
    """The chance that a batch is in time, by the room it has; never below the true chance."""
    times_ns, count = option.times_ns, len(option.times_ns)
    at = quantiles(count)
    return sorted(
        {
            int(times_ns[begin]): until / count
            for begin, until in zip(at, [*at[1:], count], strict=True)
        }.items()
    )


class TooWide(Exception):
    """Too many requests wait at once for a table of them to be made."""


class Lane:
    """One option for the requests of one class.

    Args:
        option: The option that the batches run with.
        own: The requests of the class.
        index: Their indices among all requests.
        odds: The chance that a batch is in time.
        clock: How time is counted.
        room: The most cells that its table may have.

    Attributes:
        option: As given.
        edges: The steps at which the set of possible riders changes, ascending.
        cells: The number of cells in its table.

    Raises:
        TooWide: The table would have more than `room` cells.
    """

    def __init__(
        self, option: Option, own: Requests, index: Ints, odds: Odds, clock: Clock, room: int
    ) -> None:
        """Determines which requests could ride when."""
        first_ns, last_ns, end_ns = option.windows(*own.spans)
        last = np.full(len(index), clock.at(np.array([option.before_ns - 1]))[0])
        first, end = clock.at(first_ns), clock.at(end_ns)
        fits = last_ns >= first_ns
        spans = []
        for (time_ns, chance), following in zip(odds, [*odds[1:], None], strict=True):
            high = np.minimum(end - time_ns // clock.grid_ns, last)
            low = first if following is None else end - following[0] // clock.grid_ns + 1
            low = np.maximum(low, first)
            some = np.flatnonzero(fits & (low <= high))
            spans.append((low[some], high[some], index[some], np.full(len(some), chance)))
        begins, ends, who, chances = map(np.concatenate, zip(*spans, strict=True))
        self.option = option
        self.edges = np.unique(np.concatenate((begins, ends + 1)))
        self._who, self._chance = _table(self.edges, begins, ends, who, chances, room)
        self.cells = self._who.size

    def earned(self, fares: Floats) -> Floats:
        """What the best-paying riders pay together, from each edge to the next.

        Args:
            fares: The fare of each request, with a 0 at the end.
        """
        size, paid = self.option.size, fares[self._who]
        if self._chance is not None:
            paid *= self._chance
        beyond = paid.shape[1] - size
        if beyond > 0 and size == 1:
            paid = paid.max(axis=1, keepdims=True)
        elif beyond > 0:
            paid.partition(beyond, axis=1)
            paid = paid[:, beyond:]
        earned: Floats = paid.sum(axis=1)
        return earned

    def served(self, steps: Ints, odds: Floats, fares: Floats) -> Floats:
        """How often batches are expected to serve each request in time.

        Args:
            steps: The steps in which they start.
            odds: The probability that each of them is run.
            fares: The fare of each request, with a 0 at the end.
        """
        likely = np.bincount(np.searchsorted(self.edges, steps, side="right") - 1, odds)
        rows = np.flatnonzero(likely)
        who = self._who[rows]
        chance = np.ones(who.shape) if self._chance is None else self._chance[rows]
        paid, beyond = fares[who] * chance, who.shape[1] - self.option.size
        if beyond > 0:
            dearest = np.argpartition(paid, beyond, axis=1)[:, beyond:]
            who = np.take_along_axis(who, dearest, axis=1)
            chance = np.take_along_axis(chance, dearest, axis=1)
            paid = np.take_along_axis(paid, dearest, axis=1)
        pays = paid > 0
        count: Floats = np.zeros(len(fares))
        count += np.bincount(who[pays], (likely[rows, None] * chance)[pays], len(fares))
        return count[:-1]


def _table(
    edges: Ints, low: Ints, high: Ints, who: Ints, chance: Floats, room: int
) -> tuple[Ints, Floats | None]:
    """The riders in each stretch between edges; empty cells hold -1, where `fares` is 0."""
    begin, until = np.searchsorted(edges, low), np.searchsorted(edges, high + 1)
    count = until - begin
    rows = max(0, len(edges) - 1)
    changes = np.bincount(begin, minlength=rows + 1) - np.bincount(until, minlength=rows + 1)
    filled = np.cumsum(changes)[:rows]
    shape = rows, int(np.max(filled, initial=0))
    if math.prod(shape) > room:
        raise TooWide
    entry = np.repeat(np.arange(len(low)), count)
    row = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count) + begin[entry]
    order = np.argsort(row, kind="stable")
    row, entry = row[order], entry[order]
    column = np.arange(len(row)) - np.repeat(np.cumsum(filled) - filled, filled)
    table = np.full(shape, -1)
    table[row, column] = who[entry]
    if np.all(chance == 1.0):
        return table, None
    chances = np.zeros(shape)
    chances[row, column] = chance[entry]
    return table, chances
