"""Everything that the scheduler asks of the world around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from scheduler.core.outcomes import Outcome
from scheduler.core.values import value


@value(frozen=True, slots=True)
class Dispatch:
    """Send this batch to that target now.

    Attributes:
        run_id: Names the run in later events.
        target_id: Where to.
        model: What to run.
        variant: Which of its variants.
        request_ids: The batch, in order.
        latest_start_ns: A target that could only start later need not start at all, because
            no request of the batch would be in time any more.
        reason: Why the policy chose this.
        form: The name of the smaller form in which the inputs travel; empty for as they are.
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
    """Tell the caller how the request ended; said exactly once per request.

    Attributes:
        request_id: Which one.
        outcome: How it ended.
        reason: Why, for people.
        run_id: The run whose outputs are the answer, for `completed` and `late`.
        queue_ns: Time between arrival and the last dispatch (or the end, if never dispatched).
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
    """Nobody waits for this run any more; a target that has not begun it may skip it."""

    run_id: int


@value(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this time; replaces an earlier wish."""

    at_ns: int


Command = Dispatch | Finish | CancelRun | WakeAt
