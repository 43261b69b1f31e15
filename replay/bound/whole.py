"""An upper bound by whole batches: Lagrangian relaxation of "each request at most once"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from replay.bound.bids import Requests
from replay.bound.lanes import Clock, Lane, Odds, make_clock, odds_of, quantiles
from replay.bound.model import (
    Coming,
    Conditions,
    Fleet,
    Floats,
    Ints,
    Option,
    ServiceTimes,
    make_fleet,
)
from scheduler.core.requests import RequestClass
from scheduler.core.targets import TargetSpec

_STEPS = 400_000
"""So many steps of time there are at most, unless the shortest service time is below one."""

_FINE, _ROUGH = 150, 50
"""About so many steps has the shortest service time, and while fares are sought."""

_PARTS = 8
"""Into so many parts random service times are divided while fares are sought."""

_TINY = 1e-12
"""What is gained less by a batch, as a share of all that is earned, is a rounding error."""

_BLOCK = 16_384
"""For so many steps at a time it is sought what to begin there: that takes memory."""

_LONGEST = 10_000
"""So many of its shortest batches long may a workload be: each round goes through all of them.
Where a batch is so short beside all that comes, the fluid loses little."""

_PRICES = 12
"""So many prices of device time are tried to begin with."""

_FIRST_FARE = 0.3
"""What requests pay in the other search, as a share of their worth: where nearly all can be served,
the best price is next to nothing, and there is no way down from there."""

_FEW = 0.05
"""The lowest of these prices takes about this share of the worth of what is dearest to serve."""

_MEMORY = 0.6
"""How much of the former direction is kept, so that fares don't swing."""

_FIRST_AIM, _NEXT_AIM, _LAST_AIM = 0.05, 2e-3, 3e-4
"""By what share of all worth it is tried to lower the bound: at first, at first with random service
times, and at last."""

_HALVING = 0.6
"""The aim becomes smaller by this factor after `_PATIENCE` fruitless rounds."""

_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class WholeBound:
    """What nobody can do better than.

    Attributes:
        value: The most requests, or weight, that can be expected to finish in time.
        offered: All requests, or their weight.
        grid_ns: The steps in which time was counted, everything rounded in favour of the bound.
    """

    value: float
    offered: float
    grid_ns: int

    @property
    def share(self) -> float:
        """The bound as a share of what was offered; 1 where nothing was."""
        return self.value / self.offered if self.offered else 1.0


def whole_bound(
    arrivals: Iterable[Coming],
    targets: Iterable[TargetSpec],
    *,
    conditions: Mapping[str, Conditions] | None = None,
    times: ServiceTimes | None = None,
    weighted: bool = False,
    rounds: int = 100,
) -> WholeBound:
    """The most that any policy, clairvoyant about arrivals, can finish in time in whole batches.

    Why it is an upper bound. Let each request r have any fare f(r) from 0 to its worth w(r).
    Whoever finishes it in time gets the fare. If it is finished n times, what it is worth is at
    most (w - f) + n * f, if never, 0 <= w - f. So what is in time is worth at most

        sum over requests of (w - f)  +  sum over devices of the most fares that each could earn

    if nothing but its own time bound it. That most is known exactly: a batch pays its whole time
    and carries at most as many as its size, so with V(t) for what can be earned from t on,

        V(t) = max(V(later), max over batches of  sum of f(r) * P(t + S <= end(r))  + E[V(t + S)])

    where the riders are those with the highest expected fares who have arrived by t. Service
    times that are drawn independently of all before are thereby bounded in expectation, for
    every policy that doesn't foresee them. On a grid everything is rounded down: who fits in
    truth fits on the grid, and V never rises with t, so the grid's V is not below.

    The fares are found by a subgradient method: who is served more than once pays too much, who
    is never served pays too little. First all batches take their mean times, then the means of a
    few equal parts of them. Any fares give a bound. None are sought for a workload more than
    10,000 times as long as its shortest batch: then all that could be served at all is the bound.

    Sources: M. L. Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming
    Problems", Management Science 27(1), 1981; B. T. Polyak, "Minimization of unsmooth
    functionals", USSR Computational Mathematics and Mathematical Physics 9(3), 1969: steps;
    P. M. Camerini, L. Fratta, F. Maffioli, "On improving relaxation methods by modified gradient
    techniques", Mathematical Programming Study 3, 1975: directions that remember.

    Args:
        arrivals: The workload, in any order; all of it is held in memory.
        targets: The fleet.
        conditions: Transfers, outages, slow-downs by target id.
        times: The true service times; None takes the measured samples of the offers.
        weighted: Counts weight in place of requests.
        rounds: How often fares are improved, from each of two beginnings; then, where service
            times are random, half as often for these.
    """
    fleet = make_fleet(targets, conditions, times)
    found, kinds = _columns(list(arrivals), weighted)
    offered = float(np.sum(found.worth))
    offers = [
        (option, np.flatnonzero(found.kind == number))
        for kind, number in kinds.items()
        for option in fleet.soonest(kind)
    ]
    clock, able = _clock(found, offers, _FINE)
    if clock is None:
        return WholeBound(0.0, offered, 1)
    worth = np.where(able, found.worth, 0.0)
    shortest_ns = min(option.least_ns for option, _ in offers)
    if clock.steps * clock.grid_ns > _LONGEST * shortest_ns:
        return WholeBound(float(np.sum(worth)), offered, clock.grid_ns)
    rough, _ = _clock(found, offers, _ROUGH)
    assert rough is not None
    devices = _devices(fleet, found, offers, [_means(option, 1) for option, _ in offers], rough)
    starts = _first(worth, offers, devices), _FIRST_FARE * worth
    searches = [_search(worth, start, devices, rounds, _FIRST_AIM) for start in starts]
    _, fares = min(searches, key=itemgetter(0))
    if any(option.times_ns[0] < option.times_ns[-1] for option, _ in offers):
        means = [_means(option, _PARTS) for option, _ in offers]
        devices = _devices(fleet, found, offers, means, rough)
        _, fares = _search(worth, fares, devices, rounds // 2, _NEXT_AIM)
    chances = [(odds_of(option), _few(option.times_ns)) for option, _ in offers]
    devices = _devices(fleet, found, offers, chances, clock)
    value = _value(worth, fares, [device.most(fares) for device in devices], devices)
    return WholeBound(min(value, float(np.sum(worth))), offered, clock.grid_ns)


_Offers = Sequence[tuple[Option, Ints]]
"""Options, and the requests that each could serve."""

_Chances = Sequence[tuple[Odds, Ints]]
"""Per option how likely a batch is in time, and its service times, equally likely."""


def _columns(
    arrivals: Sequence[Coming], weighted: bool
) -> tuple[Requests, dict[RequestClass, int]]:
    kinds: dict[RequestClass, int] = {}
    at_ns = np.array([arrival.at_ns for arrival in arrivals], np.int64)
    budget_ns = np.array([arrival.budget_ns for arrival in arrivals], np.int64)
    kind = [kinds.setdefault(arrival.kind, len(kinds)) for arrival in arrivals]
    worth = [arrival.weight if weighted else 1.0 for arrival in arrivals]
    columns = Requests(at_ns, at_ns + budget_ns, np.array(kind, np.int64), np.array(worth, float))
    return columns, kinds


def _clock(found: Requests, offers: _Offers, fine: int) -> tuple[Clock | None, Ints]:
    """How time is counted, and which requests can be served at all.

    Args:
        found: The requests.
        offers: What could serve them.
        fine: About so many steps has the shortest service time.
    """
    able = np.zeros(len(found.worth), bool)
    windows = []
    for option, rows in offers:
        first_ns, last_ns, end_ns = option.windows(found.at_ns[rows], found.deadline_ns[rows])
        some = last_ns >= first_ns
        able[rows[some]] = True
        windows.append((first_ns[some], end_ns[some]))
    if not np.any(able):
        return None, able
    first_ns, end_ns = map(np.concatenate, zip(*windows, strict=True))
    longest_ns = max(option.longest_ns for option, _ in offers)
    least_ns = min(option.least_ns for option, _ in offers)
    return make_clock(first_ns, end_ns, longest_ns, least_ns, fine, _STEPS), able


def _few(times_ns: Ints) -> Ints:
    """Fewer service times, equally likely, of which each quantile is at most the true one."""
    few: Ints = times_ns[quantiles(len(times_ns))]
    return few


def _means(option: Option, parts: int) -> tuple[Odds, Ints]:
    """An option as if its service times were the means of so many equal parts of them."""
    times_ns = option.times_ns
    each = np.array_split(times_ns, min(parts, len(times_ns)))
    means_ns = np.array([int(np.mean(part)) for part in each])
    odds = np.cumsum([len(part) for part in each]) / len(times_ns)
    return list(zip(means_ns.tolist(), odds.tolist(), strict=True)), means_ns


class _Device:
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


def _devices(
    fleet: Fleet, found: Requests, offers: _Offers, chances: _Chances, clock: Clock
) -> list[_Device]:
    """One device for each place that can serve anything."""
    devices = []
    for index, place in enumerate(fleet.places):
        lanes, times_ns = [], []
        for (option, rows), (odds, samples_ns) in zip(offers, chances, strict=True):
            if option.place == index:
                lane = Lane(option, found.where(rows), rows, odds, clock)
                if len(lane.edges):
                    lanes.append(lane)
                    times_ns.append(samples_ns)
        if lanes:
            devices.append(_Device(place.parallel, lanes, times_ns, clock))
    return devices


def _value(
    worth: Floats, fares: Floats, most: Sequence[float], devices: Sequence[_Device]
) -> float:
    """The bound that fares give."""
    earned = sum(device.parallel * value for device, value in zip(devices, most, strict=True))
    return float(np.sum(worth - fares)) + earned


def _first(worth: Floats, offers: _Offers, devices: Sequence[_Device]) -> Floats:
    """The best fares that are in proportion to the least device time of each request."""
    cost = np.full(len(worth), np.inf)
    for option, rows in offers:
        cost[rows] = np.minimum(cost[rows], option.least_ns / option.size)
    dearest = worth[worth > 0] / cost[worth > 0]
    prices = np.geomspace(_FEW * np.min(dearest), np.max(dearest), _PRICES)
    tried = [np.minimum(worth, price * cost) for price in prices]
    values = [_value(worth, f, [device.most(f) for device in devices], devices) for f in tried]
    best: Floats = tried[int(np.argmin(values))]
    return best


def _search(
    worth: Floats, fares: Floats, devices: Sequence[_Device], rounds: int, aim: float
) -> tuple[float, Floats]:
    """Fares at which little is served twice or never; before them, the bound that they give.

    Args:
        worth: What each request is worth.
        fares: Where to begin.
        devices: What could serve them.
        rounds: How often fares are improved at most.
        aim: By what share of all worth it is tried to lower the bound, at first.
    """
    best = fares
    least, aim = np.inf, aim * float(np.sum(worth))
    direction: Floats = np.zeros(len(worth))
    failures = 0
    for _ in range(rounds):
        plans = [device.served(fares) for device in devices]
        value = _value(worth, fares, [most for most, _ in plans], devices)
        failures = 0 if value < least - aim / 10 else failures + 1
        if value < least:
            least, best = value, fares
        counts = zip(devices, plans, strict=True)
        slope = sum([device.parallel * count for device, (_, count) in counts]) - 1.0
        if failures >= _PATIENCE:
            fares, aim, failures, direction = best, _HALVING * aim, 0, 0.0 * direction
        direction = slope + _MEMORY * direction
        ends = ((fares <= 0) & (direction > 0)) | ((fares >= worth) & (direction < 0))
        move = np.where(ends, 0.0, direction)
        length = float(move @ move)
        if length == 0 or aim < _LAST_AIM * float(np.sum(worth)):
            break
        fares = np.clip(fares - (value - least + aim) / length * move, 0.0, worth)
    return float(least), best
