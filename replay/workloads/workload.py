"""A workload: streams of requests, merged in order of time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import fsum
from operator import attrgetter
from pathlib import Path

from replay.readers import open_trace
from replay.simulator import Arrival
from replay.workloads.clients import Clients, ClientStream
from replay.workloads.errors import WorkloadError
from replay.workloads.mix import Mix, place_of
from replay.workloads.processes import Process


@dataclass(frozen=True, slots=True)
class Setting:
    """What a workload needs to know about where it is played.

    Attributes:
        seed: The same seed gives the same requests.
        capacity_per_s: Requests per second that the targets can finish; a `load` is a share of it.
        base_ns: Per model, the latency of one request alone; a `deadline_scale` multiplies it.
    """

    seed: int | str = 0
    capacity_per_s: float | None = None
    base_ns: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of an arrival process.

    Attributes:
        process: When requests arrive.
        mix: What they ask for.
        rate_per_s: The mean rate; None where `load` is given.
        load: The mean rate as a share of the capacity.
        start_s: When the stream begins.
        end_s: When it ends; None is never.
    """

    process: Process
    mix: Mix
    rate_per_s: float | None = None
    load: float | None = None
    start_s: float = 0.0
    end_s: float | None = None

    def mean_rate_per_s(self, capacity_per_s: float | None) -> float:
        """Requests per second while the stream lasts.

        Raises:
            WorkloadError: The rate is given as a load, and the capacity isn't known.
        """
        if self.rate_per_s is not None:
            return self.rate_per_s
        if self.load is None:
            raise WorkloadError("a stream needs rate_per_s or load")
        if not capacity_per_s or capacity_per_s < 0:
            raise WorkloadError(
                f"load: {self.load:g} is a share of the targets' capacity, which isn't known here; "
                "give rate_per_s"
            )
        return self.load * capacity_per_s

    def arrivals(self, setting: Setting, name: str = "0") -> Iterator[Arrival]:
        """Its requests in order of time; `name` makes its randomness differ from other streams'."""
        seed = f"{setting.seed} {name}"
        rate_per_s = self.mean_rate_per_s(setting.capacity_per_s)
        senders = self.process.streams(rate_per_s, f"{seed} times")
        each = []
        for number, sender in enumerate(senders):
            times_ns, chance = self._shifted(sender), random.Random(f"{seed} mix {number}")
            if self.process.alike:
                place = place_of(number, len(senders))
                each.append(self.mix.one_sender(times_ns, place, chance, setting.base_ns))
            else:
                each.append(self.mix.arrivals(times_ns, chance, setting.base_ns))
        return _before(merge(each), self.end_s)

    def _shifted(self, times_ns: Iterator[int]) -> Iterator[int]:
        if not self.start_s:
            return times_ns
        start_ns = round(self.start_s * 1e9)
        return (start_ns + at_ns for at_ns in times_ns)


@dataclass(frozen=True, slots=True)
class TraceStream:
    """Requests of a recorded trace.

    Attributes:
        path: The trace.
        mix: What its entries ask for.
        format: As in `open_trace`, like the rest.
        speed: How much faster to replay.
        rate_scale: The factor on the number of arrivals.
        slice_s: The seconds of the trace to play.
        sort_window_s: How far an arrival may be out of order.
    """

    path: Path
    mix: Mix
    format: str | None = None
    speed: float = 1.0
    rate_scale: float = 1.0
    slice_s: tuple[float, float | None] = (0.0, None)
    sort_window_s: float = 0.0

    def arrivals(self, setting: Setting, name: str = "0") -> Iterator[Arrival]:
        """Its requests in order of time.

        Raises:
            TraceError: As in `open_trace`.
        """
        seed = f"{setting.seed} {name}"
        trace = open_trace(
            self.path,
            self.format,
            speed=self.speed,
            rate_scale=self.rate_scale,
            slice_s=self.slice_s,
            sort_window_s=self.sort_window_s,
            seed=seed,
        )
        return self.mix.arrivals_of(trace, seed, setting.base_ns)


@dataclass(frozen=True, slots=True)
class Workload:
    """Streams of requests that are played together.

    Attributes:
        streams: At least one; a stream of clients that wait for their answers must be the only one.
        seconds: How long it lasts; None is as long as its streams do.
        requests: The most requests; None is no limit.
    """

    streams: tuple[Stream | TraceStream | ClientStream, ...]
    seconds: float | None = None
    requests: int | None = None

    def arrivals(
        self,
        seed: int | str = 0,
        *,
        capacity_per_s: float | None = None,
        base_ns: Mapping[str, int] | None = None,
    ) -> Iterator[Arrival]:
        """The requests in order of time, generated lazily; `Clients` if the loop is closed.

        Args:
            seed: The same seed gives the same requests; changing the mix does not change the times.
            capacity_per_s: As in `Setting`.
            base_ns: As in `Setting`.

        Raises:
            WorkloadError: There is a `load` or `deadline_scale`, but not what it is a multiple of.
            TraceError: A trace can't be read. Raised on reaching the request concerned.
        """
        if isinstance(first := self.streams[0], ClientStream):
            end_ns = None if self.seconds is None else round(self.seconds * 1e9)
            return Clients(first, seed, base_ns, end_ns, self.requests)
        setting = Setting(seed, capacity_per_s, base_ns)
        each = [
            stream.arrivals(setting, str(at))
            for at, stream in enumerate(self.streams)
            if not isinstance(stream, ClientStream)
        ]
        return islice(_before(merge(each), self.seconds), self.requests)

    def with_load(self, load: float) -> Workload:
        """The same workload, with its total rate set to a share of the capacity.

        Raises:
            WorkloadError: A stream is a trace or a closed loop of clients, or some rates are given
                as loads and others are not.
        """
        if isinstance(self.streams[0], ClientStream):
            raise WorkloadError(
                "the load of clients can't be set: they ask as fast as they are answered"
            )
        streams = [stream for stream in self.streams if isinstance(stream, Stream)]
        if len(streams) < len(self.streams):
            raise WorkloadError("the load of a trace can't be set; give it a rate_scale")
        if len({stream.load is None for stream in streams}) > 1:
            raise WorkloadError("streams with rate_per_s and with load can't be scaled together")
        shares = [stream.rate_per_s or stream.load or 0.0 for stream in streams]
        scaled = (
            replace(stream, rate_per_s=None, load=load * share / fsum(shares))
            for stream, share in zip(streams, shares, strict=True)
        )
        return replace(self, streams=tuple(scaled))


def merge(streams: Sequence[Iterator[Arrival]]) -> Iterator[Arrival]:
    """Merges streams in order of time; at equal times, earlier streams come first."""
    if len(streams) == 1:
        return streams[0]
    return heapq.merge(*streams, key=attrgetter("at_ns"))


def _before(arrivals: Iterator[Arrival], end_s: float | None) -> Iterator[Arrival]:
    if end_s is None:
        return arrivals
    end_ns = round(end_s * 1e9)
    return takewhile(lambda arrival: arrival.at_ns < end_ns, arrivals)
