"""What is kept of a task, on disk and in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.errors import InvalidInput
from scheduler.wire import Body, pack_tensors, unpack_tensors

LONGEST_ID = 128

Specs = list[list[Any]]
"""`[name, dtype, shape]` of each tensor, as on the wire."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept at most.

    Attributes:
        tasks: Waiting and ended.
        bytes: Their tensors on disk.
        keep_results_ms: For how long an ended task is kept.
        disk_bytes: The largest database, whatever is in it; None leaves that to the disk.
    """

    tasks: int = 100_000
    bytes: int = 1_000_000_000
    keep_results_ms: int = 86_400_000
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a submission says, unchecked: all that makes two of them the same task.

    Attributes:
        model: The model's name.
        variant: The only variant that is accepted, or None.
        priority: Which of the waiting tasks goes first.
        specs: The tensors as they were sent.
        body: Their bytes.
    """

    model: Any
    variant: Any
    priority: Any
    specs: Any
    body: Body

    def digest(self) -> bytes:
        """What is kept of it to be compared; in which order the tensors came is no matter.

        Raises:
            InvalidInput: The body is not what the specs say.
        """
        tensors = unpack_tensors(self.specs, self.body)
        ordered, buffers = pack_tensors(dict(sorted(tensors.items())))
        said = repr((self.model, self.variant, self.priority, ordered))
        hashed = hashlib.blake2b(said.encode(), digest_size=20)
        for part in buffers:
            hashed.update(part)
        return hashed.digest()


@dataclass(frozen=True, slots=True)
class Content:
    """What is to be done.

    Attributes:
        model: The model's name.
        variant: The only variant that is accepted, or None.
        specs: The tensors of one item, in the order of the model's signature.
        body: Their bytes.
        has_batch: Whether they came with a batch dimension of 1, as the answer then has too.
        priority: Which of the waiting tasks goes first, from 0 to 7.
        asked: The same as it was submitted.
    """

    model: str
    variant: str | None
    specs: Specs
    body: Body
    has_batch: bool
    priority: int
    asked: Asked


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be kept.

    Attributes:
        tenant: Whose it is.
        id: Unique among that tenant's.
        content: What is to be done.
        submitted_ms: When it came, by the wall clock.
        deadline_ms: When its result is of no use any more, by the wall clock.
        tenant_tasks: How many that tenant may keep.
        tenant_bytes: How many bytes of tensors that tenant may keep.
    """

    tenant: str
    id: str
    content: Content
    submitted_ms: int
    deadline_ms: int
    tenant_tasks: int
    tenant_bytes: int


@dataclass(frozen=True, slots=True)
class KeptTask:
    """A task on disk, without its tensors.

    Attributes:
        seq: Its number, rising in the order of submission; never used twice.
        tenant: Whose it is.
        id: Unique among that tenant's.
        kind: Its class.
        has_batch: As in `Content`.
        priority: As in `Content`.
        bytes: Of the tensors that are kept: its inputs, and later its outputs.
        submitted_ms: As in `NewTask`.
        deadline_ms: As in `NewTask`.
        attempts: How often it was run and failed.
        outcome: How it ended; None while it waits.
        reason: Why, for people.
        ended_ms: When, by the wall clock.
    """

    seq: int
    tenant: str
    id: str
    kind: RequestClass
    has_batch: bool
    priority: int
    bytes: int
    submitted_ms: int
    deadline_ms: int
    attempts: int
    outcome: Outcome | None
    reason: str
    ended_ms: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended, to be kept until it expires.

    Attributes:
        seq: Which one.
        outcome: How.
        reason: Why, for people.
        at_ms: When, by the wall clock.
        header: What a `result` message says of it; None where there is no result.
        body: The outputs.
    """

    seq: int
    outcome: Outcome
    reason: str
    at_ms: int
    header: dict[str, Any] | None = None
    body: Body | None = None


def checked_id(value: Any) -> str:
    """The id of a task.

    Raises:
        InvalidInput: It is not printable text of 1 to 128 characters.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID or not value.isprintable():
        raise InvalidInput(
            f"a task's id is printable text of 1 to {LONGEST_ID} characters, not {value!r:.200}"
        )
    return value


def class_of(model: str, variant: str | None, specs: Specs) -> RequestClass:
    """The class of a task with such tensors."""
    return RequestClass(model, variant, tuple(tuple(shape) for _, _, shape in specs))
