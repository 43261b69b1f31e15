"""Where the requests of an experiment come from: a workload, a trace or a journal."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import fsum
from pathlib import Path
from typing import Protocol

from replay.fleet.capacity import Kind, capacity_per_s
from replay.fleet.model import Fleet, FleetError
from replay.readers.timing import check, retimed
from replay.simulator import Arrival
from replay.workloads import (
    Amount,
    Cameras,
    ClientStream,
    MixEntry,
    OneOf,
    Stream,
    TraceStream,
    Uniform,
    Workload,
)
from scheduler.core.requests import RequestClass


class Source(Protocol):
    """Generates the requests for a fleet from a seed."""

    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        """The requests, in order of time."""


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """The requests of a workload.

    Attributes:
        workload: The workload.
    """

    workload: Workload

    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        """As in `Source`.

        Raises:
            FleetError: A model of the workload runs on no target.
            WorkloadError: The workload has no load or deadline for this fleet.
            TraceError: A trace can't be read. Raised on reaching the request concerned.
        """
        mix = mix_of(self.workload, fleet)
        fleet.check(mix)
        by_load = _by_load(self.workload)
        capacity = capacity_per_s(fleet, mix_of(by_load, fleet)) if by_load.streams else None
        if capacity == 0:
            raise FleetError(
                f"fleet {fleet.name!r} can finish nothing of this workload within its deadlines, "
                "so there is no load of it; to play it anyway, give it a rate_per_s"
            )
        return self.workload.arrivals(seed, capacity_per_s=capacity, base_ns=fleet.base_ns())


@dataclass(frozen=True, slots=True)
class JournalSource:
    """The requests of a journal.

    Attributes:
        path: The journal's folder, or one file.
        speed: How much faster to replay; deadlines keep their budgets.
        rate_scale: The factor on the number of requests, as in `open_trace`.
        slice_s: The seconds of the journal to play.
        requests: The most requests to play; None is no limit.

    Raises:
        ValueError: A value is out of range.
    """

    path: Path
    speed: float = 1.0
    rate_scale: float = 1.0
    slice_s: tuple[float, float | None] = (0.0, None)
    requests: int | None = None

    def __post_init__(self) -> None:
        check(self.slice_s, self.rate_scale, self.speed)

    @property
    def begin_ns(self) -> int | None:
        """How long after the journal's first request the slice begins; None at another speed."""
        return round(self.slice_s[0] * 1e9) if self.speed == 1 else None

    def arrivals(self, seed: int, fleet: Fleet) -> Iterator[Arrival]:
        """As in `Source`.

        Raises:
            FleetError: A model runs on no target. Raised on reaching the request concerned.
            JournalError: The journal can't be read. Raised likewise.
        """
        return islice(checked_for(self._played(seed), fleet), self.requests)

    def _played(self, seed: int) -> Iterator[Arrival]:
        from replay.journal import arrivals

        played = retimed(
            arrivals(self.path, warnings.warn, whole=False),
            _arrival_at,
            random.Random(f"{seed} scale"),
            slice_s=self.slice_s,
            rate_scale=self.rate_scale,
            speed=self.speed,
        )
        for arrival in played:
            # A request that arrived after its deadline is still a request.
            budget_ns = max(1, arrival.budget_ns)
            yield replace(arrival, budget_ns=budget_ns, kind=arrival.kind._replace(alone=None))


def _arrival_at(arrival: Arrival, at_ns: int) -> Arrival:
    return replace(arrival, at_ns=at_ns)


def checked_for(arrivals: Iterable[Arrival], fleet: Fleet) -> Iterator[Arrival]:
    """The requests, each checked to be of a kind that the fleet can run.

    Raises:
        FleetError: One is not. Raised on reaching that request.
    """
    checked: set[RequestClass] = set()
    for arrival in arrivals:
        if arrival.kind not in checked:
            fleet.check([arrival.kind])
            checked.add(arrival.kind)
        yield arrival


# -- the mix of a workload


def mix_of(workload: Workload, fleet: Fleet) -> dict[RequestClass, Kind]:
    """The kinds of requests in a workload, with their shares, mean deadlines and mean sizes."""
    base_ns = fleet.base_ns()
    kinds: dict[RequestClass, Kind] = {}
    for stream in workload.streams:
        shares = _shares_of(stream)
        total = fsum(shares)
        rate = (stream.rate_per_s or stream.load or 1.0) if isinstance(stream, Stream) else 1.0
        for entry, part in zip(stream.mix.entries, shares, strict=True):
            kind = RequestClass(entry.model, entry.variant)
            share = rate * part / total
            size_bytes = _mean(entry.size_bytes) if entry.size_bytes is not None else 0.0
            budget_ns = _budget_ns(entry, base_ns.get(entry.model, 0))
            known = kinds.get(kind)
            if known is not None:
                size_bytes = (share * size_bytes + known.share * known.size_bytes) / (
                    share + known.share
                )
                share += known.share
                if known.budget_ns is not None and budget_ns is not None:
                    budget_ns = max(known.budget_ns, budget_ns)
            kinds[kind] = Kind(share, budget_ns, size_bytes)
    return kinds


def _shares_of(stream: Stream | TraceStream | ClientStream) -> Sequence[float]:
    """The shares of a stream's kinds; a camera sends one kind, so few have other shares."""
    if isinstance(stream, Stream) and isinstance(stream.process, Cameras):
        return stream.mix.senders_of(stream.process.cameras)
    return [entry.share for entry in stream.mix.entries]


def load_of(workload: Workload) -> float | None:
    """The load of all streams together; None if any stream has none."""
    loads = [stream.load for stream in workload.streams if isinstance(stream, Stream)]
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(workload.streams):
        return None
    return round(fsum(known), 12)  # a load given as 1.5 is reported as 1.5


def _by_load(workload: Workload) -> Workload:
    """Only the streams whose rate is given as a share of the fleet's capacity."""
    streams = [each for each in workload.streams if isinstance(each, Stream) and each.load]
    return replace(workload, streams=tuple(streams))


def _budget_ns(entry: MixEntry, base_ns: int) -> float | None:
    if entry.deadline_ms is not None:
        return _mean(entry.deadline_ms) * 1e6
    if entry.deadline_scale is not None:
        return _mean(entry.deadline_scale) * base_ns
    return None


def _mean(amount: Amount) -> float:
    if isinstance(amount, Uniform):
        return (amount.low + amount.high) / 2
    if isinstance(amount, OneOf):
        return fsum(amount.values) / len(amount.values)
    return amount.draw(random.Random(0))
