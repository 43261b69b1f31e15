"""The caller's side of a simulation: the way to the scheduler and back, and what it costs.

A simulated request is with the scheduler when it comes. A real one is read, sent, and its answer
read; and the client takes the time of the way off the budget, so that a result which is in time
for the box is so for the caller (see docs/decisions/0002).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import mean

from replay.live.replay import LiveEnding
from replay.simulator import Arrival


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of the box.

    Attributes:
        there_ns: From when a request is due until the scheduler has it.
        back_ns: From the scheduler's word until the caller has it.
        margin_ns: What the client takes off the budget, half of it at most.
        each_ns: How long the scheduler is busy with a request that it has read. What comes
            meanwhile is read at once after that.
    """

    there_ns: int = 0
    back_ns: int = 0
    margin_ns: int = 0
    each_ns: int = 0

    def send(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """The requests as the scheduler gets them: those that it reads at once at the same time."""
        read_ns = free_ns = -1
        count = 0
        for arrival in arrivals:
            if arrival.at_ns > read_ns:
                free_ns = read_ns + count * self.each_ns
                read_ns = max(free_ns, arrival.at_ns + self.there_ns)
                count = 0
            count += 1
            margin_ns = min(self.margin_ns, arrival.budget_ns // 2)
            yield replace(arrival, at_ns=read_ns, budget_ns=arrival.budget_ns - margin_ns)


def observed_caller(endings: Iterable[LiveEnding], each_ns: int = 0) -> Caller:
    """The caller of a live replay: half of what its requests took beyond the box, each way.

    The margin is that of the Python client: the mean and two mean deviations.

    Args:
        endings: Of the replay.
        each_ns: As in `Caller`.

    Raises:
        ValueError: No request of it had a result.
    """
    ways = sorted(e.latency_ns - e.held_ns for e in endings if e.held_ns is not None)
    if not ways:
        raise ValueError("no request had a result, so nothing is known of the way to the box")
    way_ns = round(mean(ways))
    margin_ns = round(way_ns + 2 * mean(abs(way - way_ns) for way in ways))
    return Caller(way_ns // 2, way_ns - way_ns // 2, margin_ns, each_ns)
