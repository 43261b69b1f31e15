"""Requests, and the classes within which they may share a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from scheduler.core.values import value

DEFAULT_PRIORITY = 3
LOWEST_PRIORITY = 7

LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9
"""The range of a request's weight; arithmetic with weights beyond it would break down."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of an item's inputs, in the signature's order."""


class RequestClass(NamedTuple):
    """What requests must have in common to run in one batch.

    Attributes:
        model: The model's name.
        variant: The only variant that the caller accepts; None leaves the choice to the policy.
        shapes: The shapes of the inputs, in the signature's order (dtypes follow from the model).
            The shape of a text input ends with the most bytes that each text may have, a power of
            16.
        alone: The id of the only request of this class, if that request must not share a batch.
        local: Whether it must not leave this box, e.g. because it came from another one. This is
            part of the class because a whole batch goes to one target.
        exact: Whether its inputs must travel unchanged even where the model allows smaller forms
            for a slow link.
        failed_at: The id of the remote target that failed the only request of this class.
    """

    model: str
    variant: str | None = None
    shapes: Shapes = ()
    alone: int | None = None
    local: bool = False
    exact: bool = False
    failed_at: str | None = None


@value(frozen=True, slots=True)
class Request:
    """One inference that a caller waits for, as the core sees it: without its tensors.

    Attributes:
        id: From 1, increasing in order of arrival.
        kind: The class with which it may share a batch.
        deadline_ns: When the answer must leave, on the scheduler's clock.
        priority: Urgency as in RFC 9218: 0 is served first, 7 last.
        weight: The value of finishing it in time, relative to other requests; above 0.
        size_bytes: How much memory its tensors take.
        accept_late: Whether the caller wants the result even after the deadline.
    """

    id: int
    kind: RequestClass
    deadline_ns: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    size_bytes: int = 0
    accept_late: bool = False


def alone(request: Request, failed_at: str | None = None) -> Request:
    """The same request in a class of its own."""
    return replace(request, kind=request.kind._replace(alone=request.id, failed_at=failed_at))
