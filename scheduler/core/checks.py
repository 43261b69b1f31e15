"""Impossible events and decisions: the checks that find them."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Event,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetWithdrew,
)
from scheduler.core.ledger import Ledger, Record
from scheduler.core.policy import Hedge, Place
from scheduler.core.requests import Request
from scheduler.core.targets import Run, TargetState


def event_problem(
    event: Event, ledger: Ledger, runs: Mapping[int, Run], targets: Mapping[str, TargetState]
) -> str | None:
    """Why an event can't have happened; None if it can have."""
    match event:
        case Submitted():
            last_id = ledger.last_id
            for request in event.requests:
                if request.id <= last_id:
                    return f"request {request.id} came after {last_id}"
                last_id = request.id
        case BatchDone() | BatchFailed() if event.run_id not in runs:
            return f"run {event.run_id} is not known or has ended before"
        case TargetDown() | TargetReport() | TargetWithdrew() if event.target_id not in targets:
            return f"target {event.target_id!r} is not known"
        case TargetChanged(target) if target.id not in targets:
            return f"target {target.id!r} is not known"
    return None


def place_problem(
    place: Place, target: TargetState, records: Mapping[int, Record], now_ns: int
) -> tuple[str, int | None] | None:
    """Why a batch can't be placed, and the request at fault, if any; None if it can."""
    problem = batch_problem(place, target, now_ns)
    if problem is not None:
        return problem, None
    for request in place.requests:
        if unqueued := drop_problem(request, records):
            return unqueued
    return None


def drop_problem(request: Request, records: Mapping[int, Record]) -> tuple[str, int] | None:
    """Why a request can't leave its queue, and its id; None if it can."""
    record = records.get(request.id)
    if record is None or not record.queued or record.request is not request:
        return f"request {request.id} is not queued", request.id
    return None


def hedge_problem(
    hedge: Hedge, target: TargetState, records: Mapping[int, Record], now_ns: int
) -> tuple[str, int | None] | None:
    """Why a second copy can't be sent, and the request at fault, if any; None if it can."""
    problem = batch_problem(hedge, target, now_ns)
    if problem is not None:
        return problem, None
    for request in hedge.requests:
        record = records.get(request.id)
        if record is None or record.run is None or record.request is not request:
            return f"request {request.id} is not running", request.id
        if record.hedge is not None:
            return f"request {request.id} has a second copy already", request.id
        if record.run.target_id == hedge.target_id:
            return f"request {request.id} runs there already", request.id
    return None


def batch_problem(place: Place | Hedge, target: TargetState, now_ns: int) -> str | None:
    """Why a target can't take a batch, apart from where its requests are now; None if it can."""
    if not target.has_slot():
        return "the target has no free slot"
    if target.closed_until_ns > now_ns:
        return "the target takes no new batch now"
    if place.offer not in target.offers.get(place.offer.model, ()):
        return "the target does not offer that variant"
    if not 0 < len(place.requests) <= place.offer.max_batch:
        return f"a batch there has 1 to {place.offer.max_batch} requests"
    kind = place.requests[0].kind
    for request in place.requests:
        if request.kind is not kind and request.kind != kind:
            return "a batch holds requests of one class"
    if len({request.id for request in place.requests}) < len(place.requests):
        return "a batch holds each request once"
    if place.offer not in target.usable(kind):
        return "the class does not accept that variant"
    return None
