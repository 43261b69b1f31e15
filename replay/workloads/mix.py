"""What requests ask for: a mix of models, deadlines, priorities, weights and sizes."""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from math import ceil, fsum
from typing import Protocol

from replay.readers import TraceEntry
from replay.simulator import Arrival
from replay.workloads.amounts import Amount
from replay.workloads.errors import WorkloadError
from scheduler.core.names import did_you_mean
from scheduler.core.requests import DEFAULT_PRIORITY, RequestClass

BaseLatency = Mapping[str, int]
"""Per model, the latency in ns of one request alone; a `deadline_scale` multiplies it."""


@dataclass(frozen=True, slots=True)
class MixEntry:
    """One kind of request.

    Attributes:
        model: The model's name.
        variant: The only variant to accept; None leaves it to the policy.
        share: How many of the requests are of this kind, relative to the other shares.
        deadline_ms: Time from arrival to deadline; None takes the trace's.
        deadline_scale: The same as a multiple of the model's base latency.
        priority: As in `Request`.
        weight: As in `Request`.
        size_bytes: The size of the inputs; None takes the trace's, or 0.
        accept_late: As in `Request`.
        label: The label of the trace entries that are of this kind.
    """

    model: str
    variant: str | None = None
    share: float = 1.0
    deadline_ms: Amount | None = None
    deadline_scale: Amount | None = None
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    size_bytes: Amount | None = None
    accept_late: bool = False
    label: str | None = None


def place_of(number: int, senders: int) -> float:
    """The position in the shares of a sender's kind; senders divide in proportion to the shares."""
    return (number + 0.5) / senders


class Mix:
    """Kinds of requests and how often each occurs.

    Args:
        entries: The kinds, at least one.

    Raises:
        WorkloadError: There are none.
    """

    def __init__(self, entries: Sequence[MixEntry]) -> None:
        """Stores the kinds."""
        if not entries:
            raise WorkloadError("mix should have at least one kind of request")
        self.entries = tuple(entries)

    def arrivals(
        self,
        times_ns: Iterable[int],
        chance: random.Random,
        base_ns: BaseLatency | None = None,
    ) -> Iterator[Arrival]:
        """An arrival for each time, of a random kind.

        Raises:
            WorkloadError: A kind of request has no deadline.
        """
        pool = _Pool(self.entries, base_ns)
        for at_ns in times_ns:
            yield pool.at(chance.random())(at_ns, chance)

    def senders_of(self, senders: int) -> list[int]:
        """How many of this many senders send each kind."""
        shares = _Shares(self.entries)
        sent = Counter(shares.at(place_of(number, senders)) for number in range(senders))
        return [sent[at] for at in range(len(self.entries))]

    def unsent(self, senders: int) -> list[str]:
        """The models of the kinds that none of this many senders would send."""
        sent = zip(self.entries, self.senders_of(senders), strict=True)
        return [entry.model for entry, count in sent if not count]

    def enough_senders(self) -> int:
        """A number of senders that gives each kind at least one."""
        shares = [entry.share for entry in self.entries]
        return ceil(fsum(shares) / min(shares))

    def one_sender(
        self,
        times_ns: Iterable[int],
        place: float,
        chance: random.Random,
        base_ns: BaseLatency | None = None,
    ) -> Iterator[Arrival]:
        """Arrivals that are all alike, as a camera's are: one kind, deadline and size.

        Args:
            times_ns: The arrival times.
            place: The position in the shares, from `place_of`.
            chance: The source of random numbers.
            base_ns: Per model, the latency of one request alone.

        Raises:
            WorkloadError: The kind of request has no deadline.
        """
        first = _Pool(self.entries, base_ns).at(place)(0, chance)
        kind, budget_ns, size_bytes = first.kind, first.budget_ns, first.size_bytes
        priority, weight, late = first.priority, first.weight, first.accept_late
        for at_ns in times_ns:
            yield Arrival(at_ns, kind, budget_ns, priority, weight, late, size_bytes)

    def arrivals_of(
        self,
        trace: Iterable[TraceEntry],
        seed: int | str,
        base_ns: BaseLatency | None = None,
    ) -> Iterator[Arrival]:
        """An arrival for each entry of a trace.

        An entry whose label appears in the mix is of that kind; all others are of the kinds without
        a label. If the trace names models and the mix has several, an entry is of a kind with its
        model, or with its model as the label. Entries of one source are of one kind. Where the mix
        gives no deadline or size, the trace's is used.

        Raises:
            WorkloadError: An entry has no deadline, or no kind fits its label or its model.
        """
        chance = random.Random(f"{seed} mix")
        labels = {entry.label for entry in self.entries}
        several = len({entry.model for entry in self.entries}) > 1
        pools: dict[tuple[str | None, str | None], _Pool] = {}
        for entry in trace:
            label = entry.label if entry.label in labels else None
            model = entry.model if several else None
            pool = pools.get((label, model))
            if pool is None:
                pool = pools[label, model] = _Pool(self._kinds_of(entry.label, model), base_ns)
            place = chance.random() if entry.source is None else _place_of(seed, entry.source)
            yield pool.at(place)(entry.at_ns, chance, entry)

    def _kinds_of(self, label: str | None, model: str | None) -> list[MixEntry]:
        """The kinds that a trace's entry with this label and model may be of."""
        of_label = [entry for entry in self.entries if entry.label == label]
        kinds = of_label or [entry for entry in self.entries if entry.label is None]
        if model is not None:
            named = [entry for entry in self.entries if entry.label == model]
            kinds = [entry for entry in kinds if entry.model == model] or named
            if not kinds:
                known = sorted({entry.model for entry in self.entries})
                raise WorkloadError(
                    f"no kind of request has the trace's model {model!r} as its model, or as its "
                    f"label; {did_you_mean(model, known)}"
                )
        if not kinds:
            labels = sorted({str(entry.label) for entry in self.entries})
            raise WorkloadError(
                f"mix has no kind for what the trace labels {label!r}; add one with that "
                f"label, or one without (it has {', '.join(labels)})"
            )
        return kinds


def _place_of(seed: int | str, source: str) -> float:
    """The position of a source in the shares, from 0 to below 1; it depends on the seed."""
    digest = blake2b(f"{seed} {source}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


class _Maker(Protocol):
    def __call__(
        self, at_ns: int, chance: random.Random, traced: TraceEntry | None = None
    ) -> Arrival: ...


class _Shares:
    """Finds a kind by a position from 0 to below 1, with all shares laid end to end."""

    def __init__(self, entries: Sequence[MixEntry]) -> None:
        *self._bounds, self._total = accumulate(entry.share for entry in entries)

    def at(self, place: float) -> int:
        return bisect(self._bounds, place * self._total)


class _Pool:
    """Kinds of requests, found by their position in the shares."""

    def __init__(self, entries: Sequence[MixEntry], base_ns: BaseLatency | None) -> None:
        self._makers = [_maker(entry, base_ns) for entry in entries]
        self._shares = _Shares(entries)

    def at(self, place: float) -> _Maker:
        return self._makers[self._shares.at(place)]


def _maker(entry: MixEntry, base_ns: BaseLatency | None) -> _Maker:
    """A function that makes arrivals of one kind; constant values are looked up once."""
    deadline = entry.deadline_ms or entry.deadline_scale
    unit_ns = _unit_ns(entry, base_ns)
    size = entry.size_bytes
    kind = RequestClass(entry.model, entry.variant)
    priority, weight, late = entry.priority, entry.weight, entry.accept_late

    def make(at_ns: int, chance: random.Random, traced: TraceEntry | None = None) -> Arrival:
        if deadline is not None:
            budget_ns = max(1, round(deadline.draw(chance) * unit_ns))
        elif traced is not None and traced.budget_ns is not None:
            budget_ns = traced.budget_ns
        else:
            raise WorkloadError(
                f"mix: {entry.model!r} has no deadline, and no trace has one for it; give it "
                "deadline_ms"
            )
        if size is not None:
            size_bytes = round(size.draw(chance))
        else:
            size_bytes = (traced.size_bytes if traced else None) or 0
        return Arrival(at_ns, kind, budget_ns, priority, weight, late, size_bytes)

    return make


def _unit_ns(entry: MixEntry, base_ns: BaseLatency | None) -> float:
    if entry.deadline_ms is not None or entry.deadline_scale is None:
        return 1e6
    if base_ns is None or entry.model not in base_ns:
        raise WorkloadError(
            f"mix: {entry.model!r} has a deadline_scale, and its base latency isn't known here; "
            "give it deadline_ms"
        )
    return base_ns[entry.model]
