"""What one device could do at best for given fares, and how likely that serves each request.

Time is counted in the steps of a clock (`replay.bound.lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from replay.bound.lanes import Clock, Lane
from replay.bound.model import Floats, Ints

_TINY = 1e-12
"""What is gained less by a batch, as a share of all that is earned, is a rounding error."""

_BLOCK = 16_384
"""For so many steps at a time it is sought what to begin there: that takes memory."""


class Device:
    """The best that one target of a place can do for given fares.

    Args:
        parallel: How many batches the place runs at once.
        lanes: What it could run.
        times_ns: The service times of each lane, equally likely.
        clock: How time is counted.
    """

    def __init__(
        self, parallel: int, lanes: Sequence[Lane], times_ns: Sequence[Ints], clock: Clock
    ) -> None:
        """Counts service times in steps."""
        self.parallel = parallel
        self.lanes = lanes
        self._end = clock.steps
        counted = [np.unique(ns // clock.grid_ns, return_counts=True) for ns in times_ns]
        many = np.array([len(steps) for steps, _ in counted])
        self._begin = np.cumsum([0, *many])[:-1]
        self._steps = np.concatenate([steps for steps, _ in counted])
        self._share = np.concatenate([n / np.sum(n) for _, n in counted])[:, None]
        by = [int(clock.at(np.array([lane.option.by_ns]))[0]) for lane in lanes]
        self._by = np.repeat(by, many)
        self._few = max(1, int(np.min(self._steps)))
        each = np.arange(np.max(many))
        self._own = self._begin[:, None] + np.minimum(each, many[:, None] - 1)
        self._own_share = np.where(each < many[:, None], self._share[self._own, 0], 0.0)

    def most(self, fares: Floats) -> float:
        """What it could earn at most."""
        value, _ = self._plan(self._earned(np.append(fares, 0.0)))
        return float(value[0])

    def served(self, fares: Floats) -> tuple[float, Floats]:
        """The same, and how often that can be expected to serve each request."""
        paying = np.append(fares, 0.0)
        earned = self._earned(paying)
        value, gain = self._plan(earned)
        begins = np.flatnonzero(gain > value[1:] + _TINY * value[0])
        lane = np.zeros(len(begins), np.int64)
        every = np.arange(len(self._steps))[:, None]
        for first in range(0, len(begins), _BLOCK):
            some = begins[first : first + _BLOCK]
            then = self._mean(value[self._after(every, some)]) + earned[:, some]
            lane[first : first + _BLOCK] = np.argmax(then, axis=0)
        odds = self._odds(begins, lane)
        count = np.zeros(len(fares))
        for number, each in enumerate(self.lanes):
            own = np.flatnonzero((lane == number) & (odds > 0.0))
            count += each.served(begins[own], odds[own], paying)
        return float(value[0]), count

    def _after(self, which: Ints, begins: Ints) -> Ints:
        """When service times end, of those named, that begin in these steps."""
        after: Ints = np.minimum(self._steps[which] + begins, self._by[which])
        np.maximum(after, begins + 1, out=after)  # nothing begins on a lane that is over
        return after

    def _odds(self, begins: Ints, lane: Ints) -> Floats:
        """How likely each batch is run of those that would be begun in these steps.

        Forwards, as many steps at a time as the shortest batch takes: what leads to those batches
        has begun before. What an outage cuts short goes on with the next of these.

        Args:
            begins: The steps, ascending.
            lane: Which lane would run there.
        """
        odds = np.zeros(len(begins))
        odds[:1] = 1.0
        following = np.searchsorted(begins, np.arange(self._end + 1))
        at = 0
        if len(self._steps) == len(self.lanes):
            then = following[self._after(lane, begins)].tolist()
            while at < len(begins):
                odds[at] = 1.0
                at = then[at]
            return odds
        while at < len(begins):
            until = int(np.searchsorted(begins, begins[at] + self._few))
            likely = at + np.flatnonzero(odds[at:until])
            at = until
            if len(likely):
                own = lane[likely]
                then = following[self._after(self._own[own], begins[likely, None])]
                share = odds[likely, None] * self._own_share[own]
                some = then < len(begins)
                more = np.bincount(np.maximum(then[some] - until, 0), share[some])
                odds[until : until + len(more)] += more
        return odds

    def _plan(self, earned: Floats) -> tuple[Floats, Floats]:
        """From each step on, what can be earned: at all, and with a batch begun then.

        Backwards, as many steps at a time as the shortest batch takes: what those batches lead
        to is known by then.
        """
        end, few = self._end, self._few
        value, gain = np.zeros(end + 1), np.zeros(end)
        ahead, by = self._steps[:, None] + np.arange(few), self._by[:, None]
        clear = int(np.min(self._by)) - int(np.max(ahead))
        for until in range(end, 0, -few):
            begin = max(0, until - few)
            after = ahead[:, : until - begin] + begin
            if begin > clear:
                np.minimum(after, by, out=after)
            then = self._mean(value.take(after))
            then += earned[:, begin:until]
            then.max(axis=0, out=gain[begin:until])
            value[begin:until] = gain[begin:until]
            backwards = value[begin : until + 1][::-1]
            np.maximum.accumulate(backwards, out=backwards)
        return value, gain

    def _mean(self, values: Floats) -> Floats:
        """By lane the mean over its service times."""
        if len(self._steps) == len(self.lanes):
            return values
        mean: Floats = np.add.reduceat(values * self._share, self._begin, axis=0)
        return mean

    def _earned(self, fares: Floats) -> Floats:
        """What a batch of each lane earns that begins in each step."""
        earned = np.zeros((len(self.lanes), self._end))
        for row, lane in zip(earned, self.lanes, strict=True):
            first, last = lane.edges[0], lane.edges[-1]
            row[first:last] = np.repeat(lane.earned(fares), np.diff(lane.edges))
        return earned
