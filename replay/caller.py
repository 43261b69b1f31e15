"""The caller's side of a simulation: the path to the scheduler and back, and what it costs.

A simulated request reaches the scheduler at once. A real one has to be sent and read, and so does
its answer. The client subtracts that time from the budget, so that a result in time for the box is
also in time for the caller (see docs/decisions/0002).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import mean

from replay.live.endings import LiveEnding
from replay.simulator import Arrival


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of the box.

    Attributes:
        there_ns: Time from when a request is due until the scheduler has it.
        back_ns: Time from the scheduler's answer until the caller has it.
        margin_ns: What the client subtracts from the budget; at most half of the budget.
        each_ns: How long the scheduler is busy with each request it has read. Requests that arrive
            meanwhile are read together afterwards.
    """

    there_ns: int = 0
    back_ns: int = 0
    margin_ns: int = 0
    each_ns: int = 0

    def send(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """The requests as the scheduler gets them; those read together have the same time."""
        read_ns = free_ns = -1
        count = 0
        for arrival in arrivals:
            arrived_ns = arrival.at_ns + self.there_ns
            if arrived_ns > read_ns:
                free_ns = read_ns + count * self.each_ns
                read_ns = max(free_ns, arrived_ns)
                count = 0
            count += 1
            margin_ns = min(self.margin_ns, arrival.budget_ns // 2)
            yield replace(arrival, at_ns=read_ns, budget_ns=arrival.budget_ns - margin_ns)


def observed_caller(endings: Iterable[LiveEnding], each_ns: int = 0) -> Caller:
    """The caller of a live replay.

    Half of the mean time its requests spent outside the box goes to each direction. The margin is
    the Python client's: the mean plus two mean deviations.

    Args:
        endings: The endings of the replay.
        each_ns: As in `Caller`.

    Raises:
        ValueError: No request had a result.
    """
    ways = sorted(e.latency_ns - e.held_ns for e in endings if e.held_ns is not None)
    if not ways:
        raise ValueError("no request had a result, so nothing is known of the way to the box")
    way_ns = round(mean(ways))
    margin_ns = round(way_ns + 2 * mean(abs(way - way_ns) for way in ways))
    return Caller(way_ns // 2, way_ns - way_ns // 2, margin_ns, each_ns)
