"""What a box says of itself a few times a second, so that others know what to send it.

A report has one row for each variant of a model that its own devices can run: how long a single
request takes there, how long it waits before, and how many more requests are welcome. It is small,
and as old as it is: whoever reads it counts what he has sent since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes
from scheduler.core.scheduler import Scheduler
from scheduler.core.targets import TargetState
from scheduler.errors import ProtocolError

MOST_ROWS = 128
"""Variants that a report names; it stays below 20 KB."""

QUANTILES = 9
"""Of a latency, evenly spaced: that many samples travel."""

MOST_STEPS = 16
"""Batch sizes of which a report speaks."""

_LONGEST_NAME = 200

FULL_SPEED = 0.9
"""A batch that is served at this share of a device's greatest rate is large enough."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a box says of one variant.

    Attributes:
        model: The model's name.
        variant: The variant's.
        runtime: What runs it on the fastest device.
        rank: As in `Offer`.
        accuracy: As in `Offer`.
        wait_ns: How long a request waits that comes now.
        steps: How long a request is there, in nanoseconds, with how many of whoever reads this
            at once; both ascending.
        service_ns: Evenly spaced quantiles of how long a single request runs, ascending.
        energy_uj: What a single request takes on the fastest device, in microjoules; 0 where that
            is not measured. In a batch it takes less.
        item_shapes: As in `Offer`.
    """

    model: str
    variant: str
    runtime: str
    rank: int
    accuracy: float | None
    wait_ns: int
    steps: tuple[tuple[int, int], ...]
    service_ns: tuple[int, ...]
    energy_uj: int = 0
    item_shapes: Shapes = ()


def rows_of(core: Scheduler, now_ns: int) -> list[Row]:
    """What this box's own devices can do now; `steps` is for all who send there together."""
    devices = [t for t in core.targets.values() if t.up and not t.spec.remote]
    backlog_ns = _backlog_ns(core, devices)
    offered: dict[tuple[str, str], list[tuple[int, TargetState, Offer]]] = {}
    for device in devices:
        for offer in chain.from_iterable(device.offers.values()):
            one_ns = _curve(device, offer, now_ns).predict(1, 0.5)
            offered.setdefault((offer.model, offer.variant), []).append((one_ns, device, offer))
    return [_row_of(found, now_ns, backlog_ns) for _, found in sorted(offered.items())[:MOST_ROWS]]


def _row_of(found: list[tuple[int, TargetState, Offer]], now_ns: int, backlog_ns: int) -> Row:
    """What those devices that offer one variant come to together."""
    one_ns, _, best = min(found, key=itemgetter(0))
    free_ns = min(device.free_ns(now_ns) for _, device, _ in found) - now_ns
    ladders = [_curve(device, offer, now_ns).ladder(0.5) for _, device, offer in found]
    steps = []
    for size in sorted({size for ladder in ladders for size in ladder.sizes}):
        rungs = [bisect_right(ladder.sizes, size) - 1 for ladder in ladders]
        # Whoever comes waits for the batch that runs, and for his own.
        pairs = [(2 * m.latency_ns[r], 2 * m.sizes[r]) for m, r in zip(ladders, rungs, strict=True)]
        steps.append((max(ns for ns, _ in pairs), sum(count for _, count in pairs)))
        if all(m.rate[r] >= FULL_SPEED * m.rate[-1] for m, r in zip(ladders, rungs, strict=True)):
            break
    return Row(
        best.model,
        best.variant,
        best.runtime,
        best.rank,
        best.accuracy,
        free_ns + backlog_ns,
        tuple(steps),
        _service_ns(best.latency_ns[1], one_ns),
        round(best.energy(1)),
        best.item_shapes,
    )


def _curve(device: TargetState, offer: Offer, now_ns: int) -> LatencyCurve:
    """What an offer takes, without what nothing has confirmed for long.

    The core forgets that when a request comes. To a box that was slow for a moment, and says so,
    none may come any more.
    """
    curve = device.curve(offer)
    stale_ns = curve.stale_ns()
    return curve if stale_ns is None or now_ns < stale_ns else _as_measured(offer)


@lru_cache(MOST_ROWS)
def _as_measured(offer: Offer) -> LatencyCurve:
    return LatencyCurve(offer)


def _backlog_ns(core: Scheduler, devices: list[TargetState]) -> int:
    """How long all devices together need for what is queued."""
    backlog = 0.0
    for kind, queue in core.queues.items():
        rates = [
            max(device.curve(offer, kind).ladder(0.5).rate[-1] for offer in offers)
            for device in devices
            if (offers := device.usable(kind))
        ]
        if rates:
            backlog += len(queue) / sum(rates)
    return int(backlog)


def _service_ns(measured_ns: Iterable[int], median_ns: int) -> tuple[int, ...]:
    """The profile's quantiles, moved to where the median is now."""
    samples = sorted(measured_ns)
    factor = median_ns / samples[len(samples) // 2]
    last = len(samples) - 1
    return tuple(
        max(1, int(samples[round(i * last / (QUANTILES - 1))] * factor)) for i in range(QUANTILES)
    )


def report_header(
    rows: Iterable[Row], waits_ns: Mapping[tuple[str, str], int], share: Callable[[int], int]
) -> dict[str, Any]:
    """A report as a message.

    Args:
        rows: As `rows_of` gives them.
        waits_ns: The wait that lasts, by model and variant.
        share: Gives the part of the reader in what there is room for.
    """
    told = [
        [
            *(row.model, row.variant, row.runtime, row.rank, row.accuracy),
            waits_ns[row.model, row.variant],
            [[ns, share(count)] for ns, count in row.steps],
            list(row.service_ns),
            *([row.energy_uj] if row.energy_uj or row.item_shapes else []),
            *([row.item_shapes] if row.item_shapes else []),
        ]
        for row in rows
    ]
    return {"t": "report", "rows": told}


def rows_from(header: Mapping[str, Any]) -> list[Row]:
    """The rows of a report.

    Raises:
        ProtocolError: It is none.
    """
    try:
        return [_row(*fields) for fields in header["rows"][:MOST_ROWS]]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"no report of a box: {error!r:.200}") from None


def name_from(value: Any) -> str:
    """What another box calls something: it goes into headers and onto terminals.

    Raises:
        ValueError: It is no name.
    """
    if type(value) is not str or not value.isprintable() or len(value) > _LONGEST_NAME:
        raise ValueError(f"{value!r:.80} is no name")
    return value


def _row(
    model: Any,
    variant: Any,
    runtime: Any,
    rank: Any,
    accuracy: Any,
    wait: Any,
    steps: Any,
    service: Any,
    energy_uj: Any = 0,
    item_shapes: Any = (),
) -> Row:
    pairs = tuple((ns, count) for ns, count in steps)
    shapes = tuple(map(tuple, item_shapes))
    numbers = [rank, wait, energy_uj, *chain.from_iterable((*pairs, *shapes))]
    model, variant, runtime = map(name_from, (model, variant, runtime))
    if not all(type(value) is int and value >= 0 for value in numbers):
        raise ValueError(f"row of {model!r:.40}")
    if not (accuracy is None or type(accuracy) in (int, float)) or not 0 < len(pairs) <= MOST_STEPS:
        raise ValueError(f"accuracy or steps of {model!r:.40}")
    samples = tuple(service)
    if not 0 < len(samples) <= QUANTILES or not all(type(s) is int and s > 0 for s in samples):
        raise ValueError(f"service times of {model!r:.40}")
    return Row(model, variant, runtime, rank, accuracy, wait, pairs, samples, energy_uj, shapes)


def room_for(steps: Iterable[tuple[int, int]], budget_ns: int) -> int:
    """How many requests may be there at once so that each is back within a budget."""
    room, last_ns, last = 0, 0, 0
    for ns, count in steps:
        if ns > budget_ns:
            if ns > last_ns:
                room = last + (count - last) * (budget_ns - last_ns) // (ns - last_ns)
            break
        room = last = count
        last_ns = ns
    return room
