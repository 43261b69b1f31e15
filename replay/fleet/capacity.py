"""How many requests per second a fleet can serve: what a workload's load is a share of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_high

import numpy as np

from replay.bound.model import Floats
from replay.fleet.model import Fleet
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request, as far as a fleet's capacity depends on it.

    Attributes:
        share: How many requests are of this kind, relative to the others.
        budget_ns: The usual deadline; None is no deadline.
        size_bytes: The mean size of its inputs.
    """

    share: float
    budget_ns: float | None = None
    size_bytes: float = 0.0


def capacity_per_s(fleet: Fleet, mix: Mapping[RequestClass, Kind]) -> float:
    """The most requests of a mix that a fleet can serve per second, as a fluid.

    Batches have the size with the best rate among those that suit the usual deadline. A request
    that just misses a batch waits for that batch and then for its own, so two batches must fit
    into the deadline (as in Nexus, SOSP 2019). If not even two batches of one fit, but one
    does, requests are served one at a time. All devices of a box share its link. Times are
    those of the profiles, links are as usual, and all targets are up.

    Raises:
        FleetError: A kind runs on no target.
    """
    from scipy.optimize import linprog  # type: ignore[import-untyped]  # slow to import

    fleet.check(mix)
    rates = np.array([[_rate(d.spec, k, mix[k].budget_ns) for d in fleet.devices] for k in mix])
    shares = np.array([kind.share for kind in mix.values()])
    kinds, places = rates.shape
    # Columns: the total rate, then the time share of each (kind, target).
    flows = np.zeros((kinds, 1 + kinds * places))
    room = np.zeros((places, 1 + kinds * places))
    flows[:, 0] = shares / shares.sum()
    for kind in range(kinds):
        for place in range(places):
            flows[kind, 1 + kind * places + place] = -rates[kind, place]
            room[place, 1 + kind * places + place] = 1.0
    widths = [device.spec.width for device in fleet.devices]
    carried = _carried(fleet, rates, np.array([kind.size_bytes for kind in mix.values()]))
    gain = np.zeros(1 + kinds * places)
    gain[0] = -1.0
    solved = linprog(
        gain,
        A_ub=np.concatenate((flows, room, carried)),
        b_ub=np.concatenate((np.zeros(kinds), widths, np.ones(len(carried)))),
        method="highs",
    )
    # Rounded, so that arrival times don't depend on the last bits of a solver.
    return float(f"{-solved.fun:.9g}")


def _carried(fleet: Fleet, rates: Floats, sizes_bytes: Floats) -> Floats:
    """A row for each link: which share of its time each (kind, target) needs at full rate."""
    kinds, places = rates.shape
    rows: dict[int, Floats] = {}
    for place, device in enumerate(fleet.devices):
        byte_ns = device.link.expected()[1] if device.link is not None else 0.0
        if byte_ns and sizes_bytes.any():
            row = rows.setdefault(id(device.link), np.zeros(1 + kinds * places))
            row[1 + place :: places] = rates[:, place] * sizes_bytes * byte_ns / 1e9
    return np.array([*rows.values()]).reshape(-1, 1 + kinds * places)


def _rate(spec: TargetSpec, kind: RequestClass, budget_ns: float | None) -> float:
    """The most requests per second of a kind on one target, one batch at a time."""
    best = alone = 0.0
    room_ns = math.inf if budget_ns is None else budget_ns - spec.transfer(0)
    for offer in spec.offers:
        if offer.model == kind.model and kind.variant in (None, offer.variant):
            for size, samples in offer.latency_ns.items():
                per_s = size * len(samples) / sum(samples) * 1e9
                if 2 * median_high(samples) <= room_ns:
                    best = max(best, per_s)
                elif size == 1 and median_high(samples) <= room_ns:
                    alone = max(alone, per_s)
    return best or alone
