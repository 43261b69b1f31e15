"""Everything that the scheduler can tell its driver to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from scheduler.core.outcomes import Outcome
from scheduler.core.values import value


@value(frozen=True, slots=True)
class Dispatch:
    """Send this batch to this target now.

    Attributes:
        run_id: Identifies the run in later events.
        target_id: Where to send it.
        model: What to run.
        variant: Which of the model's variants.
        request_ids: The batch, in order.
        latest_start_ns: A target that can't start by then need not start at all, because no request
            of the batch would finish in time.
        reason: Why the policy chose this.
        form: The name of the smaller form in which the inputs travel; empty if they travel
            unchanged.
    """

    run_id: int
    target_id: str
    model: str
    variant: str
    request_ids: tuple[int, ...]
    latest_start_ns: int
    reason: str
    form: str = ""


@value(frozen=True, slots=True)
class Finish:
    """Tell the caller how the request ended; issued exactly once per request.

    Attributes:
        request_id: Which one.
        outcome: How it ended.
        reason: Why, for people.
        run_id: The run whose outputs are the answer, for `completed` and `late`.
        queue_ns: Time from arrival to the last dispatch (or to the end, if never dispatched).
        detail: Figures for programs, e.g. the counter-offer.
    """

    request_id: int
    outcome: Outcome
    reason: str
    run_id: int | None = None
    queue_ns: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)


@value(frozen=True, slots=True)
class CancelRun:
    """Nobody waits for this run any more; a target that has not started it may skip it."""

    run_id: int


@value(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this time; replaces any earlier `WakeAt`."""

    at_ns: int


Command = Dispatch | Finish | CancelRun | WakeAt
