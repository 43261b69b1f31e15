"""Everything that can happen to the scheduler: each I/O ends by becoming one of these."""

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
    """Requests came in, in this order."""

    requests: tuple[Request, ...]


@value(frozen=True, slots=True)
class Cancelled:
    """The caller of a request went away or cancelled."""

    request_id: int


@value(frozen=True, slots=True)
class BatchDone:
    """A run came back.

    Attributes:
        run_id: The run of a `Dispatch`.
        errors: What went wrong with single requests of the batch, by request id.
    """

    run_id: int
    errors: Mapping[int, str] = field(default_factory=dict)


@value(frozen=True, slots=True)
class BatchFailed:
    """A run came back without results.

    Attributes:
        run_id: The run of a `Dispatch`.
        reason: What happened, for people.
        started: False when the target refused or skipped it; that costs no attempt.
    """

    run_id: int
    reason: str
    started: bool = True


@sealed(frozen=True, slots=True)
class TargetUp:
    """A target is ready for work; one of the same id is replaced.

    Attributes:
        target: As it is.
        more: Whether reports of what else it can run follow, the last of them without offers. Until
            that one, what the former target of that id could run is expected of it.
    """

    target: TargetSpec
    more: bool = False


@sealed(frozen=True, slots=True)
class TargetDown:
    """A target is gone, and with it whatever it was running.

    Attributes:
        target_id: Which one.
        reason: What happened, for people.
        returns_in_ns: How long until it is expected back; None when it is not.
        blameless: No request can have brought it down, as when the link to it broke; what it
            was running then costs no attempt and keeps its company.
    """

    target_id: str
    reason: str
    returns_in_ns: int | None = None
    blameless: bool = False


@sealed(frozen=True, slots=True)
class TargetReport:
    """A target can run more, or was measured anew: these offers are added or replaced.

    Without any, all that it can run has been reported.
    """

    target_id: str
    offers: tuple[Offer, ...]


@sealed(frozen=True, slots=True)
class TargetChanged:
    """What is known of a target or of the way to it is different now; what it runs goes on.

    Attributes:
        target: As it is from now on; its offers are added or replaced, and none is taken away.
        closed_ns: For so long it takes no new batch, e.g. until more may be spent there.
    """

    target: TargetSpec
    closed_ns: int = 0


@sealed(frozen=True, slots=True)
class PolicySwapped:
    """Another policy decides from now on."""

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
    | TargetChanged
    | PolicySwapped
    | Woken
)
