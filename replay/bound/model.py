"""The best a fleet can do: its targets as places, its offers as options.

An option is one batch size of one offer on one target during one phase of the target, with the true
distribution of its service time. Everything that the bounds need to know about a fleet is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FAR_NS = 1 << 61
"""A time that is never reached."""

ServiceTimes = Callable[[str, Offer, int], Sequence[int]]
"""The true service times of (target id, offer, batch size) in nanoseconds, equally likely. Each
batch draws one independently of all else. A single sample means it always takes that long."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on what can be finished in time.

    Attributes:
        value: The most requests, or weight, that can be expected to finish in time.
        offered: All requests, or their weight.
    """

    value: float
    offered: float

    @property
    def share(self) -> float:
        """The bound as a share of what was offered; 1 if nothing was."""
        return self.value / self.offered if self.offered else 1.0


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that carries the inputs of one batch after the other.

    Attributes:
        name: Its name; it is shared by all targets whose conditions name it.
        byte_ns: How long each byte occupies it, in nanoseconds.
        spare_ns: In a span of T ns it carries what occupies it for T + `spare_ns` at most. This is
            for a link of varying rate, of which `byte_ns` is the mean.

    Raises:
        ValueError: A time is negative.
    """

    name: str
    byte_ns: float
    spare_ns: int = 0

    def __post_init__(self) -> None:
        """Refuses impossible values."""
        if min(self.byte_ns, self.spare_ns) < 0:
            raise ValueError("a transfer takes 0 ns or more")

    def taken_ns(self, size_bytes: Ints) -> Floats:
        """How long inputs of each size occupy it."""
        taken: Floats = np.floor(self.byte_ns * size_bytes)
        return taken


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is true of a target beyond its offers.

    Attributes:
        out_ns: The least time that a request without inputs needs to reach it.
        back_ns: The least time that its result needs to return.
        up: The spans in which it is up, in order; a batch must start and end within one of them.
            None means always.
        parallel: How many batches it runs at the same time.
        slowdown: Pairs of a time and the factor on the service times of batches that start from
            then on, in order. Before the first, times are unchanged.
        byte_ns: The least time that each byte of the inputs adds to `out_ns`.
        link: The link that its inputs take; None if that carries any amount.

    Raises:
        ValueError: A time is negative, a span is empty or out of order, a factor is not above 0,
            or `parallel` is below 1.
    """

    out_ns: int = 0
    back_ns: int = 0
    up: tuple[tuple[int, int], ...] | None = None
    parallel: int = 1
    slowdown: tuple[tuple[int, float], ...] = ()
    byte_ns: float = 0.0
    link: SharedLink | None = None

    def __post_init__(self) -> None:
        """Refuses impossible values."""
        if min(self.out_ns, self.back_ns, self.byte_ns) < 0:
            raise ValueError("a transfer takes 0 ns or more")
        if self.parallel < 1:
            raise ValueError(f"a target runs 1 batch or more at a time, not {self.parallel}")
        spans = self.up or ()
        if any(until_ns <= from_ns for from_ns, until_ns in spans) or any(
            later[0] < earlier[1] for earlier, later in pairwise(spans)
        ):
            raise ValueError("the spans in which a target is up must be in order, and not empty")
        if any(later[0] <= earlier[0] for earlier, later in pairwise(self.slowdown)):
            raise ValueError("the phases of a target's slowdown must be in order")
        if any(factor <= 0 for _, factor in self.slowdown):
            raise ValueError("a target's slowdown is a factor above 0")

    def phases(self) -> list[tuple[int, int, int, float]]:
        """Phases as (start from, start before, end by, factor), without empty ones."""
        steps = [(-FAR_NS, 1.0), *self.slowdown, (FAR_NS, 1.0)]
        spans = ((-FAR_NS, FAR_NS),) if self.up is None else self.up
        return [
            (max(up_ns, from_ns), min(down_ns, before_ns), down_ns, factor)
            for up_ns, down_ns in spans
            for (from_ns, factor), (before_ns, _) in pairwise(steps)
            if max(up_ns, from_ns) < min(down_ns, before_ns)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A batch of one size, run with one offer in one place, within one phase of the place.

    Attributes:
        place: Index of the place.
        size: How many requests the batch holds.
        least_ns: The shortest service time.
        longest_ns: The longest service time.
        from_ns: The batch starts at this time or later.
        before_ns: The batch starts before this time.
        by_ns: The batch is done at this time or earlier.
        out_ns: As in `Conditions`.
        back_ns: As in `Conditions`.
        byte_ns: As in `Conditions`.
        room_ns: The distinct service times, ascending.
        price_ns: For a batch that has at least `room_ns[k]` of time, the least expected time
            on the device per success, over all rules that see the outcome only when it is there:
            the minimum over h <= room of E[min(S, h)] / P(S <= h).
    """

    place: int
    size: int
    least_ns: int
    longest_ns: int
    from_ns: int
    before_ns: int
    by_ns: int
    out_ns: int
    back_ns: int
    byte_ns: float
    room_ns: Ints
    price_ns: Floats
    times_ns: Ints

    def windows(self, at_ns: Ints, deadline_ns: Ints, size_bytes: Ints) -> tuple[Ints, Ints, Ints]:
        """The first and the last time a batch with each request could start, and its latest end."""
        carried_ns = (self.byte_ns * size_bytes).astype(np.int64)
        first_ns = np.maximum(at_ns + self.out_ns + carried_ns, self.from_ns)
        end_ns = np.minimum(deadline_ns - self.back_ns, self.by_ns)
        return first_ns, np.minimum(end_ns - self.least_ns, self.before_ns - 1), end_ns

    def prices(self, room_ns: Ints) -> Floats:
        """`price_ns` for batches with this much room; each room must be at least `least_ns`."""
        prices: Floats = self.price_ns[np.searchsorted(self.room_ns, room_ns, side="right") - 1]
        return prices

    def beats(self, other: Option) -> bool:
        """Whether nothing is lost by leaving out the other option, if batches need not be full."""
        if (self.place, self.from_ns, self.by_ns) != (other.place, other.from_ns, other.by_ns):
            return False
        if self.size < other.size or self.least_ns > other.least_ns:
            return False
        return bool(np.all(self.prices(other.room_ns) <= other.price_ns))

    def is_sooner(self, other: Option) -> bool:
        """As `beats`, if no batch is abandoned: whether it is never less likely to be done."""
        if (self.place, self.from_ns, self.by_ns) != (other.place, other.from_ns, other.by_ns):
            return False
        own = np.searchsorted(self.times_ns, other.times_ns, side="right") / len(self.times_ns)
        others = np.searchsorted(other.times_ns, other.times_ns, side="right") / len(other.times_ns)
        return self.size >= other.size and bool(np.all(own >= others))


@dataclass(frozen=True, slots=True)
class Place:
    """Identical targets, taken together.

    Attributes:
        targets: Their specifications.
        conditions: The conditions of each of them.
        parallel: How many batches they run at the same time, together.
        link: The index of the link on the way to them; None if that carries any amount.
    """

    targets: tuple[TargetSpec, ...]
    conditions: Conditions
    parallel: int
    link: int | None

    def capacity_ns(self, edges_ns: Ints) -> Floats:
        """The device time available between each edge and the next."""
        if self.conditions.up is None:
            return np.diff(edges_ns).astype(np.float64) * self.parallel
        up_ns = np.zeros(len(edges_ns), np.int64)
        for from_ns, until_ns in self.conditions.up:
            up_ns += np.clip(edges_ns, from_ns, until_ns) - from_ns
        return np.diff(up_ns).astype(np.float64) * self.parallel


@dataclass(slots=True)
class Fleet:
    """All places, and the options for each class.

    Attributes:
        places: Groups of identical targets.
        links: The links that some of them share.
    """

    places: tuple[Place, ...]
    links: tuple[SharedLink, ...]
    _times: ServiceTimes
    _options: dict[tuple[str, str | None], list[Option]] = field(default_factory=dict)
    _useful: dict[tuple[str, str | None], list[Option]] = field(default_factory=dict)

    def capacity_ns(self, edges_ns: Ints) -> Floats:
        """The time available between each edge and the next, of each place, then of each link."""
        links = [np.diff(edges_ns).astype(np.float64)] * len(self.links)
        return np.array([*(place.capacity_ns(edges_ns) for place in self.places), *links])

    def options(self, kind: RequestClass) -> list[Option]:
        """Every option that serves a class."""
        key = kind.model, kind.variant
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = list(self._find(kind))
        return found

    def soonest(self, kind: RequestClass) -> list[Option]:
        """The options that serve a class in whole batches, without those that another dominates."""
        return _undominated(self.options(kind), Option.is_sooner)

    def useful(self, kind: RequestClass) -> list[Option]:
        """The options that serve a class, without those beaten where a batch need not be full."""
        key = kind.model, kind.variant
        found = self._useful.get(key)
        if found is None:
            found = self._useful[key] = _undominated(self.options(kind), Option.beats)
        return found

    def _find(self, kind: RequestClass) -> Iterable[Option]:
        for index, place in enumerate(self.places):
            target = place.targets[0]
            for offer in target.offers:
                if offer.model != kind.model or kind.variant not in (None, offer.variant):
                    continue
                for size in sorted(offer.latency_ns):
                    samples = np.sort(np.asarray(self._times(target.id, offer, size), np.int64))
                    yield from _phases_of(index, place.conditions, size, samples)


def _undominated(
    options: Sequence[Option], dominates: Callable[[Option, Option], bool]
) -> list[Option]:
    """The options without those that another dominates; of two equal ones, one stays."""
    found = list(options)
    for option in options:
        if any(other is not option and dominates(other, option) for other in found):
            found.remove(option)
    return found


def _phases_of(place: int, conditions: Conditions, size: int, samples: Ints) -> Iterable[Option]:
    if len(samples) == 0 or samples[0] <= 0:
        raise ValueError(f"batch size {size} needs service times above 0")
    for from_ns, before_ns, by_ns, factor in conditions.phases():
        scaled = samples if factor == 1.0 else np.maximum(1, (samples * factor).astype(np.int64))
        room_ns, last = np.unique(scaled[::-1], return_index=True)
        done = len(scaled) - last  # how many samples are at most that long
        spent = np.cumsum(scaled)[done - 1] + (len(scaled) - done) * room_ns
        yield Option(
            place,
            size,
            int(scaled[0]),
            int(scaled[-1]),
            from_ns,
            before_ns,
            by_ns,
            conditions.out_ns,
            conditions.back_ns,
            conditions.byte_ns,
            room_ns,
            np.minimum.accumulate(spent / done),
            scaled,
        )


def make_fleet(
    targets: Iterable[TargetSpec],
    conditions: Mapping[str, Conditions] | None,
    times: ServiceTimes | None,
) -> Fleet:
    """Groups identical targets into places.

    Args:
        targets: The fleet.
        conditions: By target id; a target without an entry has the default conditions.
        times: The true service times; None takes the measured samples of the offers.

    Raises:
        ValueError: Two targets share an id, conditions name a target that is not in the fleet, or
            two different links have the same name.
    """
    given = dict(conditions or {})
    true_times = times or _as_measured
    groups: dict[Any, list[TargetSpec]] = {}
    seen: set[str] = set()
    for target in targets:
        if target.id in seen:
            raise ValueError(f"two targets have the id {target.id!r}")
        seen.add(target.id)
        condition = given.get(target.id, Conditions())
        offers = frozenset(
            (offer.model, offer.variant, size, tuple(true_times(target.id, offer, size)))
            for offer in target.offers
            for size in offer.latency_ns
        )
        groups.setdefault((offers, condition), []).append(target)
    unknown = sorted(set(given) - seen)
    if unknown:
        raise ValueError(f"conditions for {unknown[0]!r}, which is not a target of the fleet")
    links = list(dict.fromkeys(condition.link for _, condition in groups if condition.link))
    names = [link.name for link in links]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two different links have the name {twice!r}")
    places = tuple(
        Place(
            tuple(alike),
            condition,
            condition.parallel * len(alike),
            links.index(condition.link) if condition.link else None,
        )
        for (_, condition), alike in groups.items()
    )
    return Fleet(places, tuple(links), true_times)


def _as_measured(_target_id: str, offer: Offer, size: int) -> Sequence[int]:
    return offer.latency_ns[size]


def floored(option: Option, grid_ns: int) -> Option:
    """The option with all its times in whole steps of a grid, rounded down."""
    return replace(
        option,
        least_ns=option.least_ns // grid_ns,
        longest_ns=option.least_ns // grid_ns,
        from_ns=option.from_ns // grid_ns,
        before_ns=(option.before_ns - 1) // grid_ns + 1,
        by_ns=option.by_ns // grid_ns,
    )
