"""What one device could do at best for given fares, and how likely that serves each request.

Time is counted in the steps of a clock (`replay.bound.lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from replay.bound.lanes import Clock, Lane
from replay.bound.model import Floats, Ints

_TINY = 1e-12
"""What is gained less by a batch, as a share of all that is earned, is a rounding error."""


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
        shape = len(lanes), max(len(steps) for steps, _ in counted)
        self._steps, self._share = np.empty(shape, np.int64), np.zeros(shape)
        for row, (steps, count) in enumerate(counted):
            self._steps[row, : len(steps)] = steps
            self._steps[row, len(steps) :] = steps[-1]  # which has its whole share already
            self._share[row, : len(steps)] = count / np.sum(count)
        self._few = max(1, int(np.min(self._steps)))
        self._by = clock.at(np.array([lane.option.by_ns for lane in lanes]))[:, None]

    def most(self, fares: Floats) -> float:
        """What it could earn at most."""
        value, *_ = self._plan(self._earned(np.append(fares, 0.0)))
        return float(value[0])

    def served(self, fares: Floats) -> tuple[float, Floats]:
        """The same, and how often that can be expected to serve each request."""
        paying = np.append(fares, 0.0)
        value, gain, lane = self._plan(self._earned(paying))
        begins = np.flatnonzero(gain > value[1:] + _TINY * value[0])
        lane = lane[begins]
        odds = self._odds(begins, lane)
        count = np.zeros(len(fares))
        for number, each in enumerate(self.lanes):
            own = np.flatnonzero((lane == number) & (odds > 0.0))
            count += each.served(begins[own], odds[own], paying)
        return float(value[0]), count

    def _odds(self, begins: Ints, lane: Ints) -> Floats:
        """How likely each batch is run of those that would be begun in these steps.

        Forwards, as many steps at a time as the shortest batch takes: what leads to those batches
        has begun before. What an outage cuts short goes on with the next of these.

        Args:
            begins: The steps, ascending.
            lane: Which lane would run there.
        """
        many = len(begins)
        following = np.searchsorted(begins, np.arange(self._end + 1))
        after = np.minimum(self._steps[lane] + begins[:, None], self._by[lane])
        then = following[np.maximum(after, begins[:, None] + 1)]  # many: after all of them
        odds = np.zeros(many + 1)
        odds[0] = 1.0
        at = 0
        if then.shape[1] == 1:
            nexts = then[:, 0].tolist()
            while at < many:
                at = nexts[at]
                odds[at] = 1.0
            return odds[:many]
        share = self._share[lane]
        untils = following[np.minimum(begins + self._few, self._end)].tolist()
        while at < many:
            until = untils[at]
            some = np.maximum(then[at:until] - until, 0)
            likely = share[at:until] * odds[at:until, None]
            more = np.bincount(some.reshape(-1), likely.reshape(-1))
            odds[until : until + len(more)] += more
            at = until
        return odds[:many]

    def _plan(self, earned: Floats) -> tuple[Floats, Floats, Ints]:
        """From each step on, what can be earned: at all, with a batch begun then, and which.

        Backwards, as many steps at a time as the shortest batch takes: what those batches lead
        to is known by then.
        """
        end, few, steps = self._end, self._few, self._steps
        value, gain, lane = np.zeros(end + 1), np.zeros(end), np.zeros(end, np.int64)
        ahead = sliding_window_view(value, min(few, end + 1))
        clear = int(np.min(self._by)) - int(np.max(steps)) - few + 1
        share = self._share[:, None]
        for until in range(end, 0, -few):
            begin = max(0, until - few)
            if begin <= clear:
                after = ahead[steps + begin, : until - begin]
            else:
                at = np.minimum(steps[:, :, None] + np.arange(begin, until), self._by[:, None])
                after = value[at]
            then = (share @ after)[:, 0] if share.shape[2] > 1 else after[:, 0]
            then += earned[:, begin:until]
            then.max(axis=0, out=gain[begin:until])
            then.argmax(axis=0, out=lane[begin:until])
            value[begin:until] = gain[begin:until]
            backwards = value[begin : until + 1][::-1]
            np.maximum.accumulate(backwards, out=backwards)
        return value, gain, lane

    def _earned(self, fares: Floats) -> Floats:
        """What a batch of each lane earns that begins in each step."""
        earned = np.zeros((len(self.lanes), self._end))
        for row, lane in zip(earned, self.lanes, strict=True):
            first, last = lane.edges[0], lane.edges[-1]
            row[first:last] = np.repeat(lane.earned(fares), np.diff(lane.edges))
        return earned
