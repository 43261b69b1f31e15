"""The optimum of a small workload: a time-indexed mixed-integer program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.bound.model import (
    Bound,
    Conditions,
    Fleet,
    Floats,
    Option,
    ServiceTimes,
    floored,
    make_fleet,
)
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

_COARSER = 1.5
_OPTIMAL = 0
_STOPPED = 1


@dataclass(frozen=True, slots=True)
class ExactBound(Bound):
    """The most that can be finished in time.

    Attributes:
        exact: Whether some schedule reaches `value`; if not, it is only an upper bound.
        grid_ns: The step in which time was counted; if above 1, times were rounded in favour of
            the bound.
    """

    exact: bool
    grid_ns: int


def exact_bound(
    arrivals: Iterable[Arrival],
    targets: Iterable[TargetSpec],
    *,
    conditions: Mapping[str, Conditions] | None = None,
    times: ServiceTimes | None = None,
    weighted: bool = False,
    starts: int = 6_000,
    time_limit_s: float = 60.0,
) -> ExactBound:
    """The optimum over all schedules of a clairvoyant, for up to about 30 requests.

    A schedule consists of batches. Each runs on one target without interruption, one after the
    other there, and starts when all of its requests have arrived. Each request is in at most one
    batch. A batch takes the time of one of the measured sizes, and has at most as many requests, of
    one class. A request's worth counts if its batch is done by its deadline.

    Why it is the optimum. Every schedule can be shifted to the left without any batch ending later:
    batch by batch in order of time, let each start when its last request has come (or its phase
    starts), or at the end of the batch before it. And without loss every batch has a request that
    is in time; a batch without one is left out. So on each target it suffices to consider the
    starts that are the sum of an arrival or the start of a phase, and the service times of batches
    that could have followed one another from there on. For each (option, start) an integer says how
    often it is used; at every start a constraint limits how many batches overlap. Given the
    batches, assigning requests to them is a transportation problem, whose optimum is integral, so
    those variables need not be integers.

    Why it is an upper bound when times are random, or there are too many starts. A batch takes
    the least of its `times`: no policy does better in any run. Where more than `starts` starts
    remain, all times are rounded down to a grid: if s' >= s + S then
    floor(s') >= floor(s) + floor(S), and s + S <= d gives floor(s) + floor(S) <= floor(d), so
    every schedule is still among those considered. If the time limit stops the solver, `value` is
    the bound that it has proved. How long inputs take over a link is not counted.

    Source: time-indexed formulations, J. P. Sousa, L. A. Wolsey, "A time indexed formulation of
    non-preemptive single machine scheduling problems", Mathematical Programming 54, 1992;
    left-shifted schedules, B. Giffler, G. L. Thompson, "Algorithms for Solving
    Production-Scheduling Problems", Operations Research 8(4), 1960.

    Args:
        arrivals: The workload, in any order.
        targets: The fleet.
        conditions: Transfers, outages and slow-downs by target id.
        times: The true service times; None takes the measured samples of the offers. The least
            of several samples counts.
        weighted: Counts weight instead of requests.
        starts: The most (place, batch, start); if there are more, time is counted more coarsely.
        time_limit_s: How long the solver may take.
    """
    requests = sorted(arrivals, key=lambda arrival: arrival.at_ns)
    worth = np.array([arrival.weight if weighted else 1.0 for arrival in requests])
    offered = float(np.sum(worth))
    fleet = make_fleet(targets, conditions, times)
    grid_ns = 1
    program = _begins(requests, fleet, grid_ns, starts)
    while program is None:
        grid_ns = max(grid_ns + 1, int(grid_ns * _COARSER), _finest_ns(requests, fleet))
        program = _begins(requests, fleet, grid_ns, starts)
    if not program.batches:
        return ExactBound(0.0, offered, True, grid_ns)
    value, proved = _solve(program, worth, time_limit_s)
    constant = all(
        option.least_ns == option.longest_ns
        for arrival in requests
        for option in fleet.options(arrival.kind)
    )
    instant = all(
        not place.conditions.byte_ns and place.conditions.link is None for place in fleet.places
    )
    exact = proved and constant and instant and grid_ns == 1
    return ExactBound(min(value, offered), offered, exact, grid_ns)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that could be started.

    Attributes:
        option: The option it runs with, in steps of the grid.
        kind: Its class.
        begin: When it starts.
        in_time: The requests that would be in time.
    """

    option: Option
    kind: RequestClass
    begin: int
    in_time: tuple[int, ...]

    @property
    def end(self) -> int:
        """When it ends."""
        return self.begin + self.option.least_ns

    def beats(self, other: _Batch) -> bool:
        """Whether a smaller batch, no longer, has room for all who would be in time in the other.

        Both start at the same time, in the same place.
        """
        return (
            self.kind == other.kind
            and len(other.in_time) <= self.option.size < other.option.size
            and self.end <= other.end
        )


@dataclass(frozen=True, slots=True)
class _Program:
    batches: list[_Batch]
    parallel: list[int]


def _finest_ns(requests: Sequence[Arrival], fleet: Fleet) -> int:
    """A grid worth trying first: some hundred steps per batch."""
    return min(o.least_ns for r in requests for o in fleet.options(r.kind)) // 256


def _begins(requests: Sequence[Arrival], fleet: Fleet, grid_ns: int, limit: int) -> _Program | None:
    """Every batch that a left-shifted schedule could hold; None if there are too many."""
    members: dict[RequestClass, list[int]] = {}
    for index, request in enumerate(requests):
        members.setdefault(request.kind, []).append(index)
    batches: list[_Batch] = []
    for place in range(len(fleet.places)):
        lines = [
            _Line(kind, floored(option, grid_ns), own, requests, grid_ns)
            for kind, own in members.items()
            for option in fleet.options(kind)
            if option.place == place
        ]
        open_ = {begin for line in lines for begin in line.releases()}
        seen: set[int] = set()
        while open_:
            begin = open_.pop()
            seen.add(begin)
            found = [batch for line in lines if (batch := line.batch(begin)) is not None]
            useful = [batch for batch in found if not any(o.beats(batch) for o in found)]
            batches += useful
            open_.update(batch.end for batch in useful if batch.end not in seen)
            if len(batches) > limit and grid_ns < max((r.budget_ns for r in requests), default=0):
                return None
    return _Program(batches, [place.parallel for place in fleet.places])


class _Line:
    """One option for one class, and when its requests could be in a batch of that option."""

    def __init__(
        self,
        kind: RequestClass,
        option: Option,
        own: Sequence[int],
        requests: Sequence[Arrival],
        grid_ns: int,
    ) -> None:
        self.kind = kind
        self._option = option
        self._own = own
        ends_ns = [requests[i].at_ns + requests[i].budget_ns - option.back_ns for i in own]
        self._from = [(requests[i].at_ns + option.out_ns) // grid_ns for i in own]
        self._by = [min(end_ns // grid_ns, option.by_ns) for end_ns in ends_ns]

    def releases(self) -> Iterator[int]:
        """The times at which a batch could start without waiting for another batch."""
        for release in self._from:
            if release < self._option.before_ns:
                yield max(release, self._option.from_ns)

    def batch(self, begin: int) -> _Batch | None:
        """The batch that could start at a time; None if no request in it would be in time."""
        option = self._option
        if not option.from_ns <= begin < option.before_ns:
            return None
        end = begin + option.least_ns
        in_time = tuple(
            index
            for index, release, by in zip(self._own, self._from, self._by, strict=True)
            if release <= begin and end <= by
        )
        return _Batch(option, self.kind, begin, in_time) if in_time else None


class _Rows:
    """Rows of a sparse constraint matrix, collected one by one."""

    def __init__(self) -> None:
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self.high: list[float] = []

    def add(self, terms: Iterable[tuple[int, float]], high: float) -> None:
        """One row: sum of value times column <= high."""
        for column, value in terms:
            self._row.append(len(self.high))
            self._column.append(column)
            self._value.append(value)
        self.high.append(high)

    def constraint(self, columns: int) -> Any:
        """All rows, as a `LinearConstraint` for the solver."""
        from scipy.optimize import LinearConstraint  # type: ignore[import-untyped]  # slow to import
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        matrix = csr_array(
            (self._value, (self._row, self._column)), shape=(len(self.high), columns)
        )
        return LinearConstraint(matrix, -np.inf, self.high)


def _solve(program: _Program, worth: Floats, time_limit_s: float) -> tuple[float, bool]:
    """The optimum and True if it is proved; otherwise a proved upper bound and False.

    The columns: how often each batch is used; then which requests are in it and in time.
    """
    from scipy.optimize import Bounds, milp

    batches = program.batches
    count = len(batches)
    seats = [(b, r) for b, batch in enumerate(batches) for r in batch.in_time]
    columns = count + len(seats)
    rows = _Rows()
    _add_capacity(rows, program)
    riders: list[list[int]] = [[] for _ in batches]
    rides: list[list[int]] = [[] for _ in worth]
    for column, (b, r) in enumerate(seats, start=count):
        riders[b].append(column)
        rides[r].append(column)
        rows.add([(column, 1.0), (b, -1.0)], 0.0)
    for own in rides:
        rows.add([(column, 1.0) for column in own], 1.0)
    for b, batch in enumerate(batches):
        terms = [(column, 1.0) for column in riders[b]]
        rows.add([*terms, (b, -float(batch.option.size))], 0.0)
    gain = np.zeros(columns)
    gain[count:] = [worth[r] for _, r in seats]
    upper = np.ones(columns)
    upper[:count] = [
        # on a coarse grid a batch may take no time, so any number of them can start together
        program.parallel[batch.option.place] if batch.option.least_ns else len(worth)
        for batch in batches
    ]
    whole = np.zeros(columns)
    whole[:count] = 1
    solved = milp(
        -gain,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        constraints=rows.constraint(columns),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if solved.status == _OPTIMAL:
        return _tidy(-solved.fun, worth), True
    proved = solved.mip_dual_bound if solved.status == _STOPPED else None
    if proved is None or not np.isfinite(proved):
        return float(np.sum(worth)), False
    return _tidy(-proved, worth), False


def _tidy(value: float, worth: Floats) -> float:
    """Rounds down to a whole number, if every worth is a whole number."""
    return float(np.floor(value + 1e-6)) if np.all(worth == np.round(worth)) else value


def _add_capacity(rows: _Rows, program: _Program) -> None:
    """Limits the batches that a place runs at each start to what it can run at once."""
    for place, parallel in enumerate(program.parallel):
        own = [(b, batch) for b, batch in enumerate(program.batches) if batch.option.place == place]
        order = np.array([b for b, _ in own], np.int64)
        begins = np.array([batch.begin for _, batch in own], np.int64)
        ends = np.array([batch.end for _, batch in own], np.int64)
        for begin in np.unique(begins):
            running = order[(begins <= begin) & (begin < ends)]
            if len(running) > 1:
                rows.add([(int(b), 1.0) for b in running], float(parallel))
