"""Requests and the classes in which they may share a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from scheduler.core.values import value

DEFAULT_PRIORITY = 3
LOWEST_PRIORITY = 7

LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9
"""What a request may be worth to its caller: beyond, nothing could be reckoned with it."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the inputs of an item, in the signature's order."""


class RequestClass(NamedTuple):
    """What requests must have in common to run in one batch.

    Attributes:
        model: The model's name.
        variant: The only variant that the caller accepts; None leaves the choice to the policy.
        shapes: The shapes of the inputs, in the signature's order (dtypes follow from the model).
            That of text ends with how many bytes each may have, a power of 16.
        alone: The id of the only request of this class, which must not share a batch.
        local: Whether it must not leave this box, e.g. because it came from another one. A class
            of its own, because who may run it is the same for a whole batch.
        exact: Whether its inputs must travel as they are, where they may be made smaller for a
            slow link.
    """

    model: str
    variant: str | None = None
    shapes: Shapes = ()
    alone: int | None = None
    local: bool = False
    exact: bool = False


@value(frozen=True, slots=True)
class Request:
    """One inference that somebody waits for, as the core sees it: without its tensors.

    Attributes:
        id: From 1, rising in the order of arrival.
        kind: The class with which it may share a batch.
        deadline_ns: When the answer must be on its way, on the scheduler's clock.
        priority: Urgency as in RFC 9218: 0 is served first, 7 last.
        weight: What finishing it in time is worth, relative to others; above 0.
        size_bytes: What its tensors take in memory.
        accept_late: The caller wants the result even after the deadline.
    """

    id: int
    kind: RequestClass
    deadline_ns: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    size_bytes: int = 0
    accept_late: bool = False


def alone(request: Request) -> Request:
    """The same request in a class of its own."""
    return replace(request, kind=request.kind._replace(alone=request.id))
