"""The most that one device can earn at given fares, and how often that serves each request.

Time is counted in the steps of a clock (`replay.bound.lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from replay.bound.lanes import Clock, Lane
from replay.bound.model import Floats, Ints

_TINY = 1e-12
"""A batch that gains less than this share of all earnings counts as a rounding error."""


class Device:
    """The best plan of one target of a place at given fares.

    Args:
        place: The index of the place.
        parallel: How many batches the place runs at once.
        lanes: What it can run.
        times_ns: The service times of each lane, equally likely.
        clock: How time is counted.
    """

    def __init__(
        self,
        place: int,
        parallel: int,
        lanes: Sequence[Lane],
        times_ns: Sequence[Ints],
        clock: Clock,
    ) -> None:
        """Converts service times to steps."""
        self.place = place
        self.parallel = parallel
        self.lanes = lanes
        self._end = clock.steps
        counted = [np.unique(ns // clock.grid_ns, return_counts=True) for ns in times_ns]
        shape = len(lanes), max(len(steps) for steps, _ in counted)
        self._steps, self._share = np.empty(shape, np.int64), np.zeros(shape)
        for row, (steps, count) in enumerate(counted):
            self._steps[row, : len(steps)] = steps
            self._steps[row, len(steps) :] = steps[-1]  # padding, with a share of 0
            self._share[row, : len(steps)] = count / np.sum(count)
        self._few = max(1, int(np.min(self._steps)))
        self._by = clock.at(np.array([lane.option.by_ns for lane in lanes]))[:, None]

    def most(self, fares: Floats) -> float:
        """The most it can earn."""
        value, *_ = self._plan(self._earned(np.append(fares, 0.0)))
        return float(value[0])

    def served(self, fares: Floats) -> tuple[float, Floats]:
        """The most it can earn, and how often that plan is expected to serve each request."""
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
        """The probability that each of the planned batches is run.

        Goes forward, in chunks as long as the shortest batch: everything that leads to the batches
        of a chunk has started before it. A batch that an outage cuts short is followed by the next
        planned batch.

        Args:
            begins: The steps in which batches would start, ascending.
            lane: The lane that would run in each.
        """
        many = len(begins)
        following = np.searchsorted(begins, np.arange(self._end + 1))
        after = np.minimum(self._steps[lane] + begins[:, None], self._by[lane])
        then = following[np.maximum(after, begins[:, None] + 1)]  # `many` is after all of them
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
        """For each step: the most earned from it on, the most with a batch started in it, its lane.

        Goes backward, in chunks as long as the shortest batch: the values that the batches of a
        chunk lead to are known by then.
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
        """What a batch of each lane earns if it starts in each step."""
        earned = np.zeros((len(self.lanes), self._end))
        for row, lane in zip(earned, self.lanes, strict=True):
            first, last = lane.edges[0], lane.edges[-1]
            row[first:last] = np.repeat(lane.earned(fares), np.diff(lane.edges))
        return earned
