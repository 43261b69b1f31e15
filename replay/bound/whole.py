"""An upper bound by whole batches: Lagrangian relaxation of "each request at most once"."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter

import numpy as np

from replay.bound.bids import Requests
from replay.bound.device import Device
from replay.bound.lanes import Clock, Lane, Odds, TooWide, make_clock, odds_of, quantiles
from replay.bound.model import (
    Bound,
    Conditions,
    Fleet,
    Floats,
    Ints,
    Option,
    ServiceTimes,
    make_fleet,
)
from replay.bound.tolls import Tolls
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

_STEPS = 400_000
"""The most steps of time, unless the steps would then be longer than the shortest service time."""

_FINE, _ROUGH = 150, 50
"""About how many steps the shortest service time has: for the bound, and while seeking fares."""

_PARTS = 8
"""The number of parts into which random service times are divided while seeking fares."""

_LONGEST = 10_000
"""The longest workload for which fares are sought, in shortest batches, since each round goes
through all of it. Where batches are that short in comparison, the fluid bound loses little."""

_WIDEST = 10_000_000
"""The most pairs of a step and a request that could ride then, on each device and with mean service
times; random service times need some twelve times as many. Where so many requests wait at once, the
fluid bound loses little as well."""

_PRICES = 12
"""The number of prices of device time that are tried for the first fares."""

_FIRST_FARE = 0.3
"""The fares from which the other search starts, as a share of each worth. Where nearly all requests
can be served, the best of those prices is close to 0, and the search can't descend from there."""

_TOLLS = 0.2, 0.5, 1.0, 2.0
"""The tolls of the mean request that are tried at first, as a share of the mean worth."""

_TOLL_PACE = 10.0
"""How fast tolls move in comparison with fares."""

_FEW = 0.05
"""At the lowest of these prices, the request dearest to serve pays this share of its worth."""

_MEMORY = 0.6
"""How much of the previous direction is kept, so that fares don't oscillate."""

_FIRST_AIM, _NEXT_AIM, _LAST_AIM = 0.05, 2e-3, 3e-4
"""The share of all worth by which a step tries to lower the bound: at first, at first with random
service times, and at last, when the search ends."""

_HALVING = 0.6
"""The aim is multiplied by this factor after `_PATIENCE` fruitless rounds."""

_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class WholeBound(Bound):
    """An upper bound on what can be finished in time.

    Attributes:
        grid_ns: The step in which time was counted, with everything rounded in favour of the bound.
    """

    grid_ns: int


def whole_bound(
    arrivals: Iterable[Arrival],
    targets: Iterable[TargetSpec],
    *,
    conditions: Mapping[str, Conditions] | None = None,
    times: ServiceTimes | None = None,
    weighted: bool = False,
    rounds: int = 100,
) -> WholeBound:
    """The most that any policy, clairvoyant about arrivals, can finish in time in whole batches.

    Why it is an upper bound. Let each request r have any fare f(r) from 0 to its worth w(r).
    A device that finishes r in time earns the fare. If r is finished n >= 1 times, its worth is at
    most (w - f) + n * f; if never, 0 <= w - f. So the worth of what is in time is at most

        sum over requests of (w - f)  +  sum over devices of the most fares that each could earn

    where each device is limited by nothing but its own time. Where a link leads to it, a toll is
    taken from the fare first; a link takes in at most the price of all its time, which is added
    (`tolls.py`). The most it could earn is known exactly: a batch pays its whole time and carries
    at most as many requests as its size, so with V(t) for what can be earned from t on,

        V(t) = max(V(later), max over batches of  sum of f(r) * P(t + S <= end(r))  + E[V(t + S)])

    where the riders are the requests with the highest expected fares that have arrived by t.
    Service times that are drawn independently of all before are thereby bounded in expectation, for
    every policy that doesn't foresee them. On a grid everything is rounded down: what fits in
    reality fits on the grid, and V never rises with t, so the grid's V is not below the true one.

    The fares are found by a subgradient method: a request that is served more than once pays too
    much, one that is never served pays too little. First all batches take their mean times, then
    the means of a few equal parts of their times. Any fares give a bound. The search is skipped for
    a workload more than 10,000 times as long as its shortest batch, and where too many requests
    wait at once for the memory it takes. The bound is then everything that could be served at all.

    Sources: M. L. Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming
    Problems", Management Science 27(1), 1981; B. T. Polyak, "Minimization of unsmooth
    functionals", USSR Computational Mathematics and Mathematical Physics 9(3), 1969: steps;
    P. M. Camerini, L. Fratta, F. Maffioli, "On improving relaxation methods by modified gradient
    techniques", Mathematical Programming Study 3, 1975: directions that remember.

    Args:
        arrivals: The workload, in any order; all of it is held in memory.
        targets: The fleet.
        conditions: Transfers, outages and slow-downs by target id.
        times: The true service times; None takes the measured samples of the offers.
        weighted: Counts weight instead of requests.
        rounds: How often fares are improved from each of two starting points; then half as often
            for random service times, if there are any.
    """
    fleet = make_fleet(targets, conditions, times)
    kinds: dict[RequestClass, int] = {}
    found = Requests.of(list(arrivals), weighted, kinds)
    offered = float(np.sum(found.worth))
    offers = [
        (option, np.flatnonzero(found.kind == number))
        for kind, number in kinds.items()
        for option in fleet.soonest(kind)
    ]
    able, first_ns, end_ns = _windows(found, offers)
    worth = np.where(able, found.worth, 0.0)
    if not np.any(worth):
        return WholeBound(0.0, offered, 1)
    shortest_ns = min(option.least_ns for option, _ in offers)
    longest_ns = max(option.longest_ns for option, _ in offers)
    clock, rough = (
        make_clock(first_ns, end_ns, longest_ns, shortest_ns, fine, _STEPS)
        for fine in (_FINE, _ROUGH)
    )
    if clock.steps * clock.grid_ns > _LONGEST * shortest_ns:
        return WholeBound(float(np.sum(worth)), offered, clock.grid_ns)
    try:
        means = [_means(option, 1) for option, _ in offers]
        devices = list(_devices(fleet, found, offers, means, rough, _WIDEST))
    except TooWide:
        return WholeBound(float(np.sum(worth)), offered, clock.grid_ns)
    tolls = Tolls(fleet, found)
    sale = _Sale(worth, tolls)
    starts = _first(sale, offers, devices), np.concatenate((_FIRST_FARE * worth, tolls.free))
    searches = [_search(sale, start, devices, rounds, _FIRST_AIM) for start in starts]
    _, prices = min(searches, key=itemgetter(0))
    if any(option.times_ns[0] < option.times_ns[-1] for option, _ in offers):
        means = [_means(option, _PARTS) for option, _ in offers]
        devices = list(_devices(fleet, found, offers, means, rough))
        _, prices = _search(sale, prices, devices, rounds // 2, _NEXT_AIM)
    chances = [(odds_of(option), _few(option.times_ns)) for option, _ in offers]
    # One device at a time: these tables are many times as large as those above.
    value = sale.value(prices, _devices(fleet, found, offers, chances, clock))
    return WholeBound(min(value, float(np.sum(worth))), offered, clock.grid_ns)


_Offers = Sequence[tuple[Option, Ints]]
"""Options, and the requests that each could serve."""

_Chances = Sequence[tuple[Odds, Ints]]
"""Per option, the chance that a batch is in time, and its service times, equally likely."""


def _windows(found: Requests, offers: _Offers) -> tuple[Ints, Ints, Ints]:
    """Which requests can be served at all, and the starts and ends of their windows by option."""
    able = np.zeros(len(found.worth), bool)
    begins_ns: list[Ints] = [np.empty(0, np.int64)]
    ends_ns: list[Ints] = [np.empty(0, np.int64)]
    for option, rows in offers:
        first_ns, last_ns, end_ns = option.windows(*found.where(rows).spans)
        some = last_ns >= first_ns
        able[rows[some]] = True
        begins_ns.append(first_ns[some])
        ends_ns.append(end_ns[some])
    return able, np.concatenate(begins_ns), np.concatenate(ends_ns)


def _few(times_ns: Ints) -> Ints:
    """Fewer service times, equally likely, each quantile of which is at most the true one."""
    few: Ints = times_ns[quantiles(len(times_ns))]
    return few


def _means(option: Option, parts: int) -> tuple[Odds, Ints]:
    """The odds and times of an option whose service times are the means of equal parts of them."""
    times_ns = option.times_ns
    each = np.array_split(times_ns, min(parts, len(times_ns)))
    means_ns = np.array([int(np.mean(part)) for part in each])
    odds = np.cumsum([len(part) for part in each]) / len(times_ns)
    return list(zip(means_ns.tolist(), odds.tolist(), strict=True)), means_ns


def _devices(
    fleet: Fleet,
    found: Requests,
    offers: _Offers,
    chances: _Chances,
    clock: Clock,
    room: int = sys.maxsize,
) -> Iterator[Device]:
    """One device for each place that can serve anything.

    Raises:
        TooWide: The tables of one device have more cells than `room`.
    """
    for index, place in enumerate(fleet.places):
        lanes, times_ns, left = [], [], room
        for (option, rows), (odds, samples_ns) in zip(offers, chances, strict=True):
            if option.place == index:
                lane = Lane(option, found.where(rows), rows, odds, clock, left)
                left -= lane.cells
                if len(lane.edges):
                    lanes.append(lane)
                    times_ns.append(samples_ns)
        if lanes:
            yield Device(index, place.parallel, lanes, times_ns, clock)


class _Sale:
    """What is sold at prices: a fare for each request, then the tolls of links.

    Args:
        worth: What each request is worth.
        tolls: The links.

    Attributes:
        worth: As given.
        most: The highest price that could be of use.
        pace: How far each price moves, as a multiple of the slope. A toll's slope is that of all
            requests that pay it.
    """

    def __init__(self, worth: Floats, tolls: Tolls) -> None:
        """Takes the requests and the links."""
        self.worth = worth
        self.tolls = tolls
        self._slope = np.concatenate((np.full(len(worth), -1.0), tolls.room))
        self.most = np.concatenate((worth, np.full(len(tolls.room), np.inf)))
        share = _TOLL_PACE / np.maximum(1.0, tolls.room)
        self.pace = np.concatenate((np.ones(len(worth)), share))

    def value(self, prices: Floats, devices: Iterable[Device]) -> float:
        """The bound that prices give."""
        earned = [d.parallel * d.most(self._left(d, prices)) for d in devices]
        return self._total(prices, earned)

    def slope(self, prices: Floats, devices: Iterable[Device]) -> tuple[float, Floats]:
        """The bound that prices give, and how it changes with each of them."""
        slope, earned = self._slope.copy(), []
        many = len(self.worth)
        for device in devices:
            most, count = device.served(self._left(device, prices))
            earned.append(device.parallel * most)
            slope[:many] += device.parallel * count
            slope[many:] -= self.tolls.used(device.place, prices[many:], device.parallel * count)
        return self._total(prices, earned), slope

    def _left(self, device: Device, prices: Floats) -> Floats:
        """What a device gets of each fare."""
        many = len(self.worth)
        toll = self.tolls.least(device.place, prices[many:])
        left: Floats = np.maximum(prices[:many] - toll, 0.0)
        return left

    def _total(self, prices: Floats, earned: Iterable[float]) -> float:
        return float(np.sum(self.worth) + self._slope @ prices) + sum(earned)


def _first(sale: _Sale, offers: _Offers, devices: Sequence[Device]) -> Floats:
    """The best prices at which all device time costs the same, and all time of each link."""
    worth, tolls = sale.worth, sale.tolls
    cost = {option.place: np.full(len(worth), np.inf) for option, _ in offers}
    for option, rows in offers:
        own = cost[option.place]
        own[rows] = np.minimum(own[rows], option.least_ns / option.size)
    least = np.min(list(cost.values()), axis=0)
    dearest = worth[worth > 0] / least[worth > 0]
    choices = np.geomspace(_FEW * np.min(dearest), np.max(dearest), _PRICES).tolist()

    def prices(price: float, toll: Floats) -> Floats:
        ways = [price * own + tolls.least(place, toll) for place, own in cost.items()]
        return np.concatenate((np.minimum(worth, np.min(ways, axis=0)), toll))

    def best(tried: Sequence[tuple[float, Floats]]) -> tuple[float, Floats]:
        return min(tried, key=lambda each: sale.value(prices(*each), devices))

    found = best([(price, tolls.free) for price in choices])
    for link in tolls.scarce:
        changed = [tolls.at(found[1], link, toll) for toll in _TOLLS]
        found = best([found, *product(choices, changed)])
    return prices(*found)


def _search(
    sale: _Sale, prices: Floats, devices: Sequence[Device], rounds: int, aim: float
) -> tuple[float, Floats]:
    """The lowest bound found, and its prices, at which few requests are served twice or never.

    Args:
        sale: The requests and links.
        prices: The prices to start from.
        devices: The devices that could serve the requests.
        rounds: The most rounds of improving prices.
        aim: The share of all worth by which a round tries to lower the bound at first.
    """
    best = prices
    offered = float(np.sum(sale.worth))
    least, aim = np.inf, aim * offered
    direction: Floats = np.zeros(len(prices))
    failures = 0
    for _ in range(rounds):
        value, slope = sale.slope(prices, devices)
        failures = 0 if value < least - aim / 10 else failures + 1
        if value < least:
            least, best = value, prices
        if failures >= _PATIENCE:
            prices, aim, failures, direction = best, _HALVING * aim, 0, 0.0 * direction
        direction = slope + _MEMORY * direction
        ends = ((prices <= 0) & (direction > 0)) | ((prices >= sale.most) & (direction < 0))
        move = np.where(ends, 0.0, sale.pace * direction)
        length = float(move @ direction)
        if length == 0 or aim < _LAST_AIM * offered:
            break
        prices = np.clip(prices - (value - least + aim) / length * move, 0.0, sale.most)
    return float(least), best
