"""The linear program that finds the value of device time over a stretch of a workload.

    maximise    sum of  worth[g] * y[g, p, j]
    subject to  sum over p, j of  y[g, p, j]             <=  count[g]        (group g)
                sum over g of     y[g, p, j] / rate[g, p] <=  capacity[p, j]  (place p, interval j)
                sum over g, p of  y[g, p, j] * taken[g, l] <= length[j]       (link l, interval j)

The last sum is over the places behind a link. y is how many requests of a group are served in a
place during an interval. A group consists of requests of the same worth, with about the same rates,
and with windows that meet the same intervals. The dual values of the second and third row are the
prices: what one more nanosecond of that place or link in that interval would be worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.bound.model import Fleet, Floats, Ints

_COARSEST = 16
_MOST_ITERATIONS = 20_000
"""Ends hard programs; a time limit would make the bound depend on the machine."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests as the linear program sees them; rows are requests, columns are places.

    Attributes:
        worth: What each is worth.
        rate: The most requests like it that a place can serve per nanosecond; 0 where it can't.
        first_ns: The first time at which it can be worked on there.
        last_ns: The time until which it can.
        taken_ns: How long it occupies each link; columns are links.
        toll: What its way to a place costs.
    """

    worth: Floats
    rate: Floats
    first_ns: Ints
    last_ns: Ints
    taken_ns: Floats
    toll: Floats


@dataclass(frozen=True, slots=True)
class _Groups:
    worth: Floats
    count: Floats
    rate: Floats
    first: Ints
    last: Ints
    taken_ns: Floats

    def columns(self) -> int:
        return int(np.sum((self.last - self.first + 1)[self.rate > 0]))


def price_list(
    demand: Demand,
    fleet: Fleet,
    from_ns: int,
    until_ns: int,
    columns: int,
) -> tuple[Ints, Floats]:
    """Edges of intervals, and the price of a nanosecond in each of them, per place, then per link.

    Args:
        demand: The requests.
        fleet: The places that can serve them, and the links to these.
        from_ns: Start of the stretch.
        until_ns: Its end, after its start.
        columns: The most columns of the program; to stay below, time is divided more coarsely.
    """
    edges_ns = _edges(demand, from_ns, until_ns, max(4 * _COARSEST, columns // 16))
    groups = _group(demand, edges_ns)
    while groups.columns() > columns and len(edges_ns) > _COARSEST:
        edges_ns = _edges(demand, from_ns, until_ns, (len(edges_ns) - 1) * 2 // 3)
        groups = _group(demand, edges_ns)
    return edges_ns, _solve(groups, fleet, edges_ns)


def _edges(demand: Demand, from_ns: int, until_ns: int, intervals: int) -> Ints:
    able = demand.rate > 0
    events_ns = np.concatenate((demand.first_ns[able], demand.last_ns[able]))
    return event_edges(events_ns, from_ns, until_ns, intervals)


def event_edges(events_ns: Ints, from_ns: int, until_ns: int, intervals: int) -> Ints:
    """Edges of at most `intervals` intervals, with about as many events in each."""
    events_ns = events_ns[(events_ns > from_ns) & (events_ns < until_ns)]
    inner = np.unique(events_ns)
    if len(inner) > intervals - 1:
        at = np.linspace(0, len(events_ns) - 1, intervals + 1)[1:-1].astype(np.int64)
        inner = np.unique(np.sort(events_ns)[at])
    return np.concatenate(([from_ns], inner, [until_ns]))


def _group(demand: Demand, edges_ns: Ints) -> _Groups:
    final = len(edges_ns) - 2
    able = demand.rate > 0
    first = np.searchsorted(edges_ns, demand.first_ns, side="right") - 1
    last = np.searchsorted(edges_ns, demand.last_ns, side="left") - 1
    first = np.where(able, np.clip(first, 0, final), 0)
    last = np.where(able, np.clip(last, first, final), 0)
    about = np.zeros(able.shape, np.int64)
    about[able] = np.round(16 * np.log(demand.rate[able])) + (1 << 20)
    worth_key = np.unique(demand.worth, return_inverse=True)[1].reshape(-1, 1)
    keys = np.concatenate((worth_key, about, first, last), axis=1)
    _, chosen, group, count = np.unique(
        keys, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    rate = np.zeros((len(chosen), demand.rate.shape[1]))
    np.add.at(rate, group.reshape(-1), demand.rate)
    taken_ns = np.zeros((len(chosen), demand.taken_ns.shape[1]))
    np.add.at(taken_ns, group.reshape(-1), demand.taken_ns)
    return _Groups(
        demand.worth[chosen],
        count.astype(np.float64),
        rate / count[:, None],
        first[chosen],
        last[chosen],
        taken_ns / count[:, None],
    )


def _solve(groups: _Groups, fleet: Fleet, edges_ns: Ints) -> Floats:
    """The price of a nanosecond per place or link, and interval; 0 everywhere without a column."""
    capacity_ns = fleet.capacity_ns(edges_ns)
    intervals = len(edges_ns) - 1
    group, place = np.nonzero(groups.rate > 0)
    width = (groups.last - groups.first + 1)[group, place]
    column_group, column_place = np.repeat(group, width), np.repeat(place, width)
    begin = np.repeat(np.cumsum(width) - width, width)
    interval = np.arange(len(begin)) - begin + groups.first[column_group, column_place]
    unit_ns = (edges_ns[-1] - edges_ns[0]) / intervals
    link = np.array([-1 if each.link is None else each.link for each in fleet.places])[column_place]
    far = np.flatnonzero(link >= 0)
    columns = Columns(
        groups.worth[column_group],
        column_group,
        np.concatenate((np.arange(len(column_group)), far)),
        np.concatenate((column_place, len(fleet.places) + link[far])) * intervals
        + np.concatenate((interval, interval[far])),
        np.concatenate(
            (
                1.0 / groups.rate[column_group, column_place],
                groups.taken_ns[column_group[far], link[far]],
            )
        )
        / unit_ns,
    )
    return solve(columns, groups.count, capacity_ns, unit_ns)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a linear program: ways to serve some of a group of requests.

    Attributes:
        worth: What one request of each column is worth.
        group: The group that each column serves.
        user: For each use of capacity, the column that uses it.
        slot: For each use, the capacity that is used.
        usage: For each use, how much of it one request takes, in units.
    """

    worth: Floats
    group: Ints
    user: Ints
    slot: Ints
    usage: Floats


def solve(columns: Columns, count: Floats, capacity_ns: Floats, unit_ns: float) -> Floats:
    """The dual price of a nanosecond of each capacity; 0 if the solver gives up."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]  # slow to import
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    size = len(columns.worth)
    if size == 0:
        return np.zeros(capacity_ns.shape)
    matrix = csr_array(
        (
            np.concatenate((np.ones(size), columns.usage)),
            (
                np.concatenate((columns.group, len(count) + columns.slot)),
                np.concatenate((np.arange(size), columns.user)),
            ),
        ),
        shape=(len(count) + capacity_ns.size, size),
    )
    limits = np.concatenate((count, capacity_ns.reshape(-1) / unit_ns))
    solved = linprog(
        -columns.worth,
        A_ub=matrix,
        b_ub=limits,
        method="highs",
        options={"maxiter": _MOST_ITERATIONS},
    )
    if solved.status != 0:
        return np.zeros(capacity_ns.shape)
    dual = -solved.ineqlin.marginals[len(count) :].reshape(capacity_ns.shape)
    prices: Floats = np.clip(dual / unit_ns, 0.0, None)
    return prices
