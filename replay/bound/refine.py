"""Better prices by column generation: batches that run without interruption, started at good times.

The program of `prices.py` lets a request be served in pieces all over its window, so its prices
are too low where deadlines are tight. Here a column is a request's share of one batch at one
time. At given prices, each request's cheapest batch becomes a column, and the program over all
columns so far gives the next prices. Any prices give a bound; the best ones found are returned.

Source: column generation for time-indexed formulations, J. M. van den Akker, C. A. J. Hurkens,
M. W. P. Savelsbergh, "Time-Indexed Formulations for Machine Scheduling Problems: Column
Generation", INFORMS Journal on Computing 12(2), 2000; smoothing of the prices, P. Wentges,
"Weighted Dantzig-Wolfe Decomposition for Linear Mixed-Integer Programming", International
Transactions in Operational Research 4(2), 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.bound.bids import Bid
from replay.bound.model import Floats, Ints, Place
from replay.bound.prices import Columns, Demand, event_edges, solve
from replay.bound.timeline import Prices

_MOST_INTERVALS = 5_000
_SHORTER = 0.3
_PATIENCE = 3
_SPREAD = 10
_LARGEST = 200_000


@dataclass(frozen=True, slots=True)
class _Ways:
    """Ways to serve requests, each of them one share of a batch."""

    row: Ints
    place: Ints
    begin_ns: Ints
    busy_ns: Floats
    shared_ns: Floats

    def __add__(self, other: _Ways) -> _Ways:
        return _Ways(
            np.concatenate((self.row, other.row)),
            np.concatenate((self.place, other.place)),
            np.concatenate((self.begin_ns, other.begin_ns)),
            np.concatenate((self.busy_ns, other.busy_ns)),
            np.concatenate((self.shared_ns, other.shared_ns)),
        )


_NO_WAYS = _Ways(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0)
)


def refine(
    demand: Demand,
    bids: Sequence[Bid],
    places: Sequence[Place],
    edges_ns: Ints,
    prices: Floats,
    rounds: int,
) -> tuple[Ints, Floats]:
    """Better prices of places, on finer intervals.

    Args:
        demand: The requests.
        bids: The options that can serve them.
        places: The places.
        edges_ns: The intervals so far.
        prices: The prices to start from, per place and interval.
        rounds: How often to solve the program.
    """
    intervals = min(_MOST_INTERVALS, 12 * len(demand.worth) + 16)
    events_ns = np.concatenate([bid.corners_ns() for bid in bids])
    finer_ns = event_edges(events_ns, int(edges_ns[0]), int(edges_ns[-1]), intervals)
    fine_ns = np.union1d(edges_ns, finer_ns)
    if _size(demand, bids, fine_ns) > 2 * _LARGEST:
        return edges_ns, prices
    best = prices[:, np.searchsorted(edges_ns, fine_ns[:-1], side="right") - 1]
    capacity = np.array([place.capacity_ns(fine_ns) for place in places])
    least, ways = _answer(demand, bids, fine_ns, best, capacity, spread=True)
    step, failures = 1.0, 0
    for _ in range(rounds):
        if failures > _PATIENCE:
            break
        goal = _master(demand, ways, fine_ns, capacity)
        if goal is None:
            break
        tried = best + step * (goal - best)
        value, more = _answer(demand, bids, fine_ns, tried, capacity)
        ways += more
        if value < least:
            least, best, step, failures = value, tried, min(1.0, 2 * step), 0
        else:
            step, failures = _SHORTER * step, failures + 1
    return fine_ns, best


def _size(demand: Demand, bids: Sequence[Bid], edges_ns: Ints) -> float:
    """The approximate number of entries in the first program."""
    busy_ns = min(float(np.mean(bid.price_ns)) for bid in bids)
    met = busy_ns / float(edges_ns[-1] - edges_ns[0]) * len(edges_ns) + 1
    return met * (_SPREAD + 1) * float(np.count_nonzero(demand.rate))


def _ways(bid: Bid, at: Ints, begin_ns: Ints) -> _Ways:
    """The ways of serving entries `at` of a bid in batches with the given starts."""
    busy_ns = bid.price_ns[at]
    return _Ways(
        bid.rows[at],
        np.full(len(at), bid.place),
        begin_ns[at],
        busy_ns,
        bid.shared(begin_ns)[at],
    )


def _answer(
    demand: Demand,
    bids: Sequence[Bid],
    edges_ns: Ints,
    prices: Floats,
    capacity_ns: Floats,
    spread: bool = False,
) -> tuple[float, _Ways]:
    """The bound that prices give, and the best way for each request at these prices.

    With `spread`, also the best way in each place, with starts all over the request's window.
    """
    priced = [Prices(edges_ns, row) for row in prices]
    gain = np.full((len(demand.worth), len(prices)), -np.inf)
    local = np.full(gain.shape, -1)
    answers = []
    for index, bid in enumerate(bids):
        bill, begin_ns = bid.bill(priced[bid.place])
        answers.append(begin_ns)
        surplus = demand.worth[bid.rows] - demand.toll[bid.rows, bid.place] - bill
        better = surplus > gain[bid.rows, bid.place]
        gain[bid.rows[better], bid.place] = surplus[better]
        local[bid.rows[better], bid.place] = index
    row = np.arange(len(gain))
    place = np.argmax(gain, axis=1)
    chosen, gain = local[row, place], gain[row, place]
    ways = _NO_WAYS
    for index, bid in enumerate(bids):
        at = np.flatnonzero(chosen[bid.rows] == index)
        ways += _ways(bid, at, answers[index])
    if spread:
        for index, bid in enumerate(bids):
            at = np.flatnonzero(local[bid.rows, bid.place] == index)
            slack_ns = bid.last_ns - bid.first_ns
            for part in range(_SPREAD + 1):
                ways += _ways(bid, at, bid.first_ns + slack_ns * part // _SPREAD)
    return float(np.sum(np.maximum(gain, 0.0)) + np.sum(capacity_ns * prices)), ways


def _master(demand: Demand, ways: _Ways, edges_ns: Ints, capacity_ns: Floats) -> Floats | None:
    """The prices at which the known ways compete; None if the program would be too large."""
    intervals = len(edges_ns) - 1
    unit_ns = float(edges_ns[-1] - edges_ns[0]) / intervals
    end_ns = ways.begin_ns + np.ceil(ways.busy_ns).astype(np.int64)
    first = np.clip(np.searchsorted(edges_ns, ways.begin_ns, side="right") - 1, 0, intervals - 1)
    last = np.clip(np.searchsorted(edges_ns, end_ns, side="left") - 1, first, intervals - 1)
    width = last - first + 1
    if np.sum(width) > _LARGEST:
        return None
    user = np.repeat(np.arange(len(width)), width)
    interval = np.arange(len(user)) - np.repeat(np.cumsum(width) - width, width) + first[user]
    overlap_ns = np.minimum(end_ns[user], edges_ns[interval + 1]) - np.maximum(
        ways.begin_ns[user], edges_ns[interval]
    )
    share = (ways.shared_ns / ways.busy_ns)[user]
    columns = Columns(
        demand.worth[ways.row] - demand.toll[ways.row, ways.place],
        ways.row,
        user,
        ways.place[user] * intervals + interval,
        share * np.clip(overlap_ns, 0, None) / unit_ns,
    )
    return solve(columns, np.ones(len(demand.worth)), capacity_ns, unit_ns)
