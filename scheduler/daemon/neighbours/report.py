"""The report that a box sends a few times a second, so that others know what to send it.

A report has one row for each variant of a model that the box's own devices can run: how long a
single request runs there, how long it waits first, and how many more requests are welcome. A report
is small, but it ages: its reader must account for what it has sent since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isfinite
from operator import itemgetter
from typing import Any

from scheduler.core.latency import LatencyCurve
from scheduler.core.offers import Offer
from scheduler.core.requests import Shapes
from scheduler.core.scheduler import Scheduler
from scheduler.core.targets import TargetState
from scheduler.errors import ProtocolError

MOST_ROWS = 128
"""Most variants in a report, which keeps it below 20 KB."""

QUANTILES = 9
"""Number of evenly spaced quantiles of a latency in a report."""

MOST_STEPS = 16
"""Most steps in a row of a report."""

_LONGEST_NAME = 200

FULL_SPEED = 0.9
"""A batch size is large enough if it reaches this share of a device's greatest throughput."""


@dataclass(frozen=True, slots=True)
class Row:
    """A box's report on one variant.

    Attributes:
        model: The model's name.
        variant: The variant's name.
        runtime: Its runtime on the fastest device.
        rank: As in `Offer`.
        accuracy: As in `Offer`.
        wait_ns: How long a request that arrives now would wait.
        steps: Pairs of the time that a request spends there, in nanoseconds, and how many requests
            of the reader may be there at once for that; both ascending.
        service_ns: Evenly spaced quantiles of how long a single request runs, ascending.
        energy_uj: Energy of a single request on the fastest device, in microjoules; 0 if it is not
            measured. In a batch it takes less.
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
    """The report on this box's own devices; `steps` counts the requests of all senders together."""
    devices = [t for t in core.targets.values() if t.up and not t.spec.remote]
    backlog_ns = _backlog_ns(core, devices)
    offered: dict[tuple[str, str], list[tuple[int, TargetState, Offer]]] = {}
    for device in devices:
        for offer in chain.from_iterable(device.offers.values()):
            one_ns = _curve(device, offer, now_ns).glance(0.5).latency_ns[0]
            offered.setdefault((offer.model, offer.variant), []).append((one_ns, device, offer))
    return [_row_of(found, now_ns, backlog_ns) for _, found in sorted(offered.items())[:MOST_ROWS]]


def _row_of(found: list[tuple[int, TargetState, Offer]], now_ns: int, backlog_ns: int) -> Row:
    """The row of one variant, combined over the devices that offer it."""
    one_ns, _, best = min(found, key=itemgetter(0))
    free_ns = min(device.free_ns(now_ns) for _, device, _ in found) - now_ns
    ladders = [_curve(device, offer, now_ns).glance(0.5) for _, device, offer in found]
    steps = []
    for size in sorted({size for ladder in ladders for size in ladder.sizes}):
        rungs = [bisect_right(ladder.sizes, size) - 1 for ladder in ladders]
        # A new request waits for the running batch, then for its own.
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
    """The latency curve of an offer, without learning that has gone stale.

    The core drops stale learning when a request arrives; but a box that was slow for a moment and
    reports so may get no more requests.
    """
    curve = device.curve(offer)
    stale_ns = curve.stale_ns()
    return curve if stale_ns is None or now_ns < stale_ns else _as_measured(offer)


@lru_cache(MOST_ROWS)
def _as_measured(offer: Offer) -> LatencyCurve:
    return LatencyCurve(offer)


def _backlog_ns(core: Scheduler, devices: list[TargetState]) -> int:
    """How long all devices together need for the queued requests."""
    backlog = 0.0
    for kind, queue in core.queues.items():
        rates = [
            max(device.curve(offer, kind).glance(0.5).rate[-1] for offer in offers)
            for device in devices
            if (offers := device.usable(kind))
        ]
        if rates:
            backlog += len(queue) / sum(rates)
    return int(backlog)


def _service_ns(measured_ns: Iterable[int], median_ns: int) -> tuple[int, ...]:
    """The profile's quantiles, scaled to the current median."""
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
        rows: As `rows_of` returns them.
        waits_ns: The lasting wait, by model and variant.
        share: Returns the reader's share of a number of requests that there is room for.
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
    """The rows of a report message.

    Raises:
        ProtocolError: The message is malformed.
    """
    try:
        return [_row(*fields) for fields in header["rows"][:MOST_ROWS]]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a report of a box: {error!r:.200}") from None


def name_from(value: Any) -> str:
    """Checks a name from another box, because it goes into headers and onto terminals.

    Raises:
        ValueError: It is not a printable string of reasonable length.
    """
    if type(value) is not str or not value.isprintable() or len(value) > _LONGEST_NAME:
        raise ValueError(f"{value!r:.80} is not a valid name")
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
    is_number = type(accuracy) in (int, float) and isfinite(accuracy)
    if not (accuracy is None or is_number) or not 0 < len(pairs) <= MOST_STEPS:
        raise ValueError(f"accuracy or steps of {model!r:.40}")
    samples = tuple(service)
    if not 0 < len(samples) <= QUANTILES or not all(type(s) is int and s > 0 for s in samples):
        raise ValueError(f"service times of {model!r:.40}")
    return Row(model, variant, runtime, rank, accuracy, wait, pairs, samples, energy_uj, shapes)


def room_for(steps: Iterable[tuple[int, int]], budget_ns: int) -> int:
    """How many requests may be there at once with each finishing within a budget."""
    room, last_ns, last = 0, 0, 0
    for ns, count in steps:
        if ns > budget_ns:
            if ns > last_ns:
                room = last + (count - last) * (budget_ns - last_ns) // (ns - last_ns)
            break
        room = last = count
        last_ns = ns
    return room
