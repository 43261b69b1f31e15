"""Everything that can happen to the scheduler: every I/O ends by becoming one of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scheduler.core.offers import Offer
from scheduler.core.policy import Policy
from scheduler.core.requests import Request
from scheduler.core.target_specs import TargetSpec
from scheduler.core.values import sealed, value


@value(frozen=True, slots=True)
class Submitted:
    """Requests arrived, in this order."""

    requests: tuple[Request, ...]


BY_CALLER = "the caller cancelled"
"""Why most requests are cancelled."""


@value(frozen=True, slots=True)
class Cancelled:
    """Nobody waits for a request any more.

    Attributes:
        request_id: The request.
        reason: Why, for its outcome.
    """

    request_id: int
    reason: str = BY_CALLER


@value(frozen=True, slots=True)
class BatchDone:
    """A run has finished.

    Attributes:
        run_id: The run of a `Dispatch`.
        errors: Errors of single requests of the batch, by request id.
    """

    run_id: int
    errors: Mapping[int, str] = field(default_factory=dict)


@value(frozen=True, slots=True)
class BatchFailed:
    """A run ended without results.

    Attributes:
        run_id: The run of a `Dispatch`.
        reason: What happened, for people.
        started: False if the target refused or skipped it, which costs its requests no attempt.
    """

    run_id: int
    reason: str
    started: bool = True


@sealed(frozen=True, slots=True)
class TargetUp:
    """A target is ready for work; it replaces a target with the same id.

    Attributes:
        target: What it announces.
        awaited: The models and variants that it has yet to report. Until a report without offers,
            it is expected to offer them.
    """

    target: TargetSpec
    awaited: tuple[tuple[str, str], ...] = ()


@sealed(frozen=True, slots=True)
class TargetDown:
    """A target is gone, and with it everything it was running.

    Attributes:
        target_id: Which one.
        reason: What happened, for people.
        returns_in_ns: How long until it is expected back; None if it is not.
        blameless: Whether no request can have brought it down, e.g. because the link to it broke.
            What it was running then loses no attempt and may still be batched.
        removed: Whether it is gone for good, and is forgotten. It may have been down before.
    """

    target_id: str
    reason: str
    returns_in_ns: int | None = None
    blameless: bool = False
    removed: bool = False


@sealed(frozen=True, slots=True)
class TargetReport:
    """A target can run more, or was measured again: these offers are added or replaced.

    A report without offers says that everything it can run has been reported.
    """

    target_id: str
    offers: tuple[Offer, ...]


@value(frozen=True, slots=True)
class TargetWithdrew:
    """A target no longer runs these variants; its runs of them go on.

    Attributes:
        target_id: Which target.
        variants: The models' and the variants' names. What it does not offer is ignored.
        reason: Why, for people.
    """

    target_id: str
    variants: tuple[tuple[str, str], ...]
    reason: str


@sealed(frozen=True, slots=True)
class TargetChanged:
    """A target, or the link to it, has changed; its runs go on.

    Attributes:
        target: Its new spec; the offers in it are added or replaced, and none is removed.
        closed_ns: How long it takes no new batch, e.g. until its budget allows more; 0 if it is
            open.
    """

    target: TargetSpec
    closed_ns: int = 0


@sealed(frozen=True, slots=True)
class PolicySwapped:
    """Another policy takes over."""

    name: str
    policy: Policy


@value(frozen=True, slots=True)
class Woken:
    """The time of the last `WakeAt` has come."""


Event = (
    Submitted
    | Cancelled
    | BatchDone
    | BatchFailed
    | TargetUp
    | TargetDown
    | TargetReport
    | TargetWithdrew
    | TargetChanged
    | PolicySwapped
    | Woken
)
