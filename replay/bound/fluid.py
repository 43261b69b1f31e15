"""An upper bound for workloads of any length: a fluid relaxation, priced by its dual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from replay.bound.bids import NOBODY, Bid, Requests
from replay.bound.model import (
    FAR_NS,
    Bound,
    Conditions,
    Fleet,
    Floats,
    Ints,
    ServiceTimes,
    make_fleet,
)
from replay.bound.prices import Demand, price_list
from replay.bound.refine import refine
from replay.bound.timeline import Prices
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

_SHARE_OF_LONG = 0.99


@dataclass(frozen=True, slots=True)
class FluidBound(Bound):
    """An upper bound on what can be finished in time.

    Attributes:
        possible: Those that some target could finish in time if it did nothing else.
        requests: How many requests there were.
    """

    possible: float
    requests: int


def fluid_bound(
    arrivals: Iterable[Arrival],
    targets: Iterable[TargetSpec],
    *,
    conditions: Mapping[str, Conditions] | None = None,
    times: ServiceTimes | None = None,
    weighted: bool = False,
    block: int = 1_000,
    columns: int = 8_000,
    rounds: int = 4,
) -> FluidBound:
    """The most that any policy, clairvoyant about arrivals, can finish in time.

    Why it is an upper bound. Let `price_p(t) >= 0` be any prices of the time of each place p.
    A batch that runs pays for its time; each of its requests that could still be in time when it
    began pays an equal share of that, until its own deadline. So all bills together are at most
    the price of all device time, and the worth of what is finished in time is at most

        price of all device time  +  sum over requests of  max(0, worth - its smallest bill)

    This is weak duality of the linear program "fractions of batches, each device's time at
    most once". The smallest bill is bounded from below, per option, by the cheapest time in the
    request's window and by the cheapest contiguous stretch in it, divided by how many requests
    of the class could be in one batch with it at all. Links have prices too: a request also pays
    for the time that its inputs occupy one, at its cheapest moment in the window. This holds for
    any prices; good prices only make the bound tight. The prices used are the dual values of a
    coarser program (`prices.py`). Its coarseness, solving it one stretch at a time, and the
    solver's tolerance therefore can't make the bound wrong.

    Random service times. If each batch's time is drawn independently of all that was decided
    before it began, `value` bounds the expected result of every policy that doesn't foresee them:
    S costs at least E[min(S, h)] / P(S <= h) of device time per success for a request that has
    h left, and at least min S. Given one sample each (deterministic times), it bounds every run.

    Sources: weak duality and Lagrangian relaxation of the capacity constraints (M. L. Fisher,
    "The Lagrangian Relaxation Method for Solving Integer Programming Problems", Management
    Science 27(1), 1981); time-indexed relaxations (M. E. Dyer, L. A. Wolsey, "Formulating the
    single machine sequencing problem with release dates as a mixed integer program", Discrete
    Applied Mathematics 26, 1990); the expected time per success is the reciprocal of the index
    of J. C. Gittins, "Bandit Processes and Dynamic Allocation Indices", JRSS B 41(2), 1979.

    Args:
        arrivals: The workload, in order of time; read as a stream.
        targets: The fleet.
        conditions: Transfers, outages and slow-downs by target id.
        times: The true service times; None takes the measured samples of the offers.
        weighted: Counts weight instead of requests.
        block: How many requests are processed at a time. About three blocks are held in memory,
            plus the requests whose deadlines are further ahead.
        columns: The most columns of each linear program: more is tighter and slower.
        rounds: How often prices are refined, which makes the bound tighter where deadlines are
            tight; 0 is the fastest.

    Raises:
        ValueError: The arrivals are not in order of time, or fleet and conditions don't match.
    """
    stretch = _Stretch(make_fleet(targets, conditions, times), columns, rounds)
    stream = _blocks(arrivals, weighted, block, stretch.kinds)
    offered, count = 0.0, 0
    current, following = next(stream, None), next(stream, None)
    while current is not None:
        count += len(current.at_ns)
        offered += float(np.sum(current.worth))
        stretch.advance(current, following)
        current, following = following, next(stream, None)
    value = min(stretch.value, stretch.possible)
    return FluidBound(value, offered, stretch.possible, count)


def _blocks(
    arrivals: Iterable[Arrival], weighted: bool, size: int, kinds: dict[RequestClass, int]
) -> Iterator[Requests]:
    stream = iter(arrivals)
    before_ns: int | None = None
    while block := list(islice(stream, size)):
        for arrival in block:
            if before_ns is not None and arrival.at_ns < before_ns:
                raise ValueError(
                    f"an arrival at {arrival.at_ns} ns follows one at {before_ns} ns: "
                    "a workload is in order of time"
                )
            before_ns = arrival.at_ns
        yield Requests.of(block, weighted, kinds)


@dataclass(slots=True)
class _Stretch:
    """Walks along a workload: prices a stretch of time, then settles the requests due in it.

    Attributes:
        fleet: The fleet.
        columns: The most columns of a linear program.
        rounds: How often prices are refined.
        kinds: The classes seen so far, numbered.
        value: The bound on everything settled so far.
        possible: The worth of the settled requests that could be served at all.
    """

    fleet: Fleet
    columns: int
    rounds: int
    kinds: dict[RequestClass, int] = field(default_factory=dict)
    value: float = 0.0
    possible: float = 0.0
    _past: Requests = NOBODY
    _open: Requests = NOBODY
    _from_ns: int | None = None
    _before_ns: int | None = None
    _edges_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    _prices: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def advance(self, block: Requests, following: Requests | None) -> None:
        """Processes the next block, given the one after it.

        The stretch lasts to the first arrival of the block after it. By then every request is known
        that could share a batch with one whose deadline lies before that.
        """
        if self._from_ns is None:
            self._from_ns = int(block.at_ns[0])
        known = self._past + block
        self._open += block
        if following is None:
            until_ns = max(int(np.max(self._open.deadline_ns)), self._from_ns) + 1
        else:
            until_ns = int(following.at_ns[0])
        if until_ns > self._from_ns:
            ahead = known if following is None else known + following
            self._set_prices(ahead, self._from_ns, until_ns)
        self._settle(known, until_ns)
        begin_ns = self._from_ns if self._before_ns is None else self._before_ns
        if until_ns > self._from_ns:
            self._before_ns, self._from_ns = self._from_ns, until_ns
            begin_ns = self._before_ns
        self._past = known.where(known.deadline_ns > begin_ns)

    # -- prices

    def _set_prices(self, known: Requests, from_ns: int, until_ns: int) -> None:
        """Finds prices for a span of time, taking in a margin on either side."""
        if not self.fleet.places:
            return
        budget_ns = int(np.quantile(known.deadline_ns - known.at_ns, _SHARE_OF_LONG))
        margin_ns = max(0, min(budget_ns, until_ns - from_ns))
        begin_ns, end_ns = from_ns - margin_ns, until_ns + margin_ns
        near = known.where((known.deadline_ns > begin_ns) & (known.at_ns < end_ns))
        bids = list(self._bids(near, near, None))
        demand = _demand(near, bids, self.fleet)
        edges_ns, prices = price_list(demand, self.fleet, begin_ns, end_ns, self.columns)
        if self.rounds and margin_ns >= budget_ns and np.any(prices):
            # otherwise too much that competes for this time lies outside of the margin
            edges_ns, prices = self._refined(near, demand, bids, edges_ns, prices)
        inside = (edges_ns > from_ns) & (edges_ns < until_ns)
        first = int(np.searchsorted(edges_ns, from_ns, side="right")) - 1
        kept = np.concatenate(([first], np.flatnonzero(inside)))
        new_edges_ns = np.concatenate(([from_ns], edges_ns[inside], [until_ns]))
        new_prices = prices[:, kept]
        self.value += float(np.sum(self.fleet.capacity_ns(new_edges_ns) * new_prices))
        self.value += self._spare(new_prices)
        if len(self._edges_ns):
            oldest_ns = int(np.min(self._open.at_ns, initial=from_ns))
            drop = max(0, int(np.searchsorted(self._edges_ns, oldest_ns, side="right")) - 1)
            new_edges_ns = np.concatenate((self._edges_ns[drop:-1], new_edges_ns))
            new_prices = np.concatenate((self._prices[:, drop:], new_prices), axis=1)
        self._edges_ns, self._prices = new_edges_ns, new_prices

    def _refined(
        self,
        near: Requests,
        demand: Demand,
        bids: Sequence[Bid],
        edges_ns: Ints,
        prices: Floats,
    ) -> tuple[Ints, Floats]:
        """Better prices of places, at the same prices of links."""
        many = len(self.fleet.places)
        demand = replace(demand, toll=self._tolls(near, _priced(edges_ns, prices)))
        finer_ns, better = refine(
            demand, bids, self.fleet.places, edges_ns, prices[:many], self.rounds
        )
        same = np.searchsorted(edges_ns, finer_ns[:-1], side="right") - 1
        return finer_ns, np.concatenate((better, prices[many:, same]))

    def _tolls(self, requests: Requests, priced: Sequence[Prices]) -> Floats:
        """The least that each request pays on the way to each place, at the links' prices."""
        tolls = np.zeros((len(requests.at_ns), len(self.fleet.places)))
        end_ns = np.maximum(requests.deadline_ns, requests.at_ns + 1)  # no window may be empty
        for index, place in enumerate(self.fleet.places):
            if place.link is not None:
                taken_ns = self.fleet.links[place.link].taken_ns(requests.size_bytes)
                prices = priced[len(self.fleet.places) + place.link]
                tolls[:, index] = taken_ns * prices.least(requests.at_ns, end_ns)
        return tolls

    def _spare(self, prices: Floats) -> float:
        """The price of what links can carry beyond their mean rate, while their prices are such.

        For each level, that is possible once in every span in which the price is above it.
        """
        many = len(self.fleet.places)
        before = self._prices[many:, -1:] if len(self._edges_ns) else np.zeros((len(prices), 1))
        rise = np.diff(prices[many:], axis=1, prepend=before[: len(prices) - many])
        spare_ns = np.array([link.spare_ns for link in self.fleet.links])
        return float(np.sum(spare_ns * np.sum(np.clip(rise, 0.0, None), axis=1)))

    def _bids(self, own: Requests, known: Requests, known_from_ns: int | None) -> Iterator[Bid]:
        """Every option for some of the requests; rows are indices into `own`."""
        names = list(self.kinds)
        for kind in np.unique(own.kind):
            rows = np.flatnonzero(own.kind == kind)
            some, kin = own.where(rows), known.where(known.kind == kind)
            for option in self.fleet.useful(names[kind]):
                bid = Bid(option, some, kin, known_from_ns)
                bid.rows = rows[bid.rows]
                if len(bid.rows):
                    yield bid

    # -- settling

    def _settle(self, known: Requests, until_ns: int) -> None:
        """Adds the surplus of worth over bill of the open requests whose deadline is past."""
        due = self._open.deadline_ns <= until_ns
        ready = self._open.where(due)
        self._open = self._open.where(~due)
        bids = list(self._bids(ready, known, self._before_ns))
        if not bids:  # before the first stretch there are no prices, and nobody can be served
            return
        priced = _priced(self._edges_ns, self._prices)
        tolls = self._tolls(ready, priced)
        surplus = np.zeros(len(ready.at_ns))
        able = np.zeros(len(ready.at_ns), bool)
        for bid in bids:
            toll = tolls[bid.rows, bid.place]
            gain = ready.worth[bid.rows] - toll - bid.bill(priced[bid.place])[0]
            surplus[bid.rows] = np.maximum(surplus[bid.rows], gain)
            able[bid.rows] = True
        self.value += float(np.sum(surplus))
        self.possible += float(np.sum(ready.worth[able]))


def _priced(edges_ns: Ints, prices: Floats) -> list[Prices]:
    return [Prices(edges_ns, row) for row in prices]


def _demand(requests: Requests, bids: Iterable[Bid], fleet: Fleet) -> Demand:
    """Per request and place, the best rate, and the window in which any of the options can run."""
    shape = len(requests.at_ns), len(fleet.places)
    rate = np.zeros(shape)
    first_ns = np.full(shape, FAR_NS)
    last_ns = np.full(shape, -FAR_NS)
    for bid in bids:
        at = bid.rows, bid.place
        first_ns[at] = np.minimum(first_ns[at], bid.first_ns)
        last_ns[at] = np.maximum(last_ns[at], bid.end_ns)
        rate[at] = np.maximum(rate[at], 1.0 / bid.cost_ns)
    taken_ns = np.array([link.taken_ns(requests.size_bytes) for link in fleet.links])
    taken_ns = taken_ns.reshape(len(fleet.links), shape[0]).T
    return Demand(requests.worth, rate, first_ns, last_ns, taken_ns, np.zeros(shape))
