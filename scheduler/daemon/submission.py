"""A request as a door hands it to the scheduler, and the answer it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.wire import Body
from workers.link import Packed


@dataclass(slots=True)
class Submission:
    """A valid request at the door.

    Attributes:
        kind: The request's class.
        specs: `[name, dtype, shape]` of its tensors, in the signature's order.
        body: Its packed tensors, in that order.
        deadline_ns: On the monotonic clock of the box.
        priority: As in `Request`.
        weight: As in `Request`.
        accept_late: As in `Request`.
        reply: Called exactly once, with the answer.
        budget_ns: The budget that its caller gave it; 0 if unknown.
        trace: The `traceparent` for servers that it is sent to; empty if it is not traced.
    """

    kind: RequestClass
    specs: list[list[Any]]
    body: Body
    deadline_ns: int
    priority: int
    weight: float
    accept_late: bool
    reply: Callable[[Answer], None]
    budget_ns: int = 0
    trace: str = ""


class Provenance(Protocol):
    """The variant and runtime that produced an answer."""

    @property
    def variant(self) -> str:
        """The model's variant."""

    @property
    def runtime(self) -> str:
        """The runtime that ran it."""


@dataclass(slots=True)
class Answer:
    """How a request ended, with the outputs where there are any.

    Attributes:
        outcome: How it ended.
        reason: Why, for people.
        detail: Figures for programs.
        target: The target that ran it.
        offer: The variant and runtime that ran it.
        batch: Size of its batch, including this request.
        outputs: The packed output tensors of this request alone.
        timing_ns: Time in the queue, in transfer, in execution, and in total.
        notes: Further facts about the outputs.
        cache: `hit` if the result cache answered, `miss` if it could not, else empty.
        digest: That of the model's files that ran; empty if it is unknown.
    """

    outcome: Outcome
    reason: str
    detail: Mapping[str, Any]
    target: str = ""
    offer: Provenance | None = None
    batch: int = 0
    outputs: Packed | None = None
    timing_ns: tuple[int, int, int, int] = (0, 0, 0, 0)
    notes: Mapping[str, Any] = field(default_factory=dict)
    cache: str = ""
    digest: str = ""

    def header(self) -> dict[str, Any]:
        """The header of a `result` message in the native protocol; requires outputs."""
        assert self.outputs is not None
        assert self.offer is not None
        header: dict[str, Any] = {
            "outcome": self.outcome.value,
            "target": self.target,
            "variant": self.offer.variant,
            "runtime": self.offer.runtime,
            "batch": self.batch,
            "out": self.outputs[0],
            "timing": self.timing_ns,
        }
        if self.notes:
            header["notes"] = self.notes
        return header
