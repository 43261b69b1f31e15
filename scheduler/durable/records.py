"""The records of a task, on disk and in memory."""

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
    """Limits on what is kept.

    Attributes:
        tasks: The most tasks, waiting and ended.
        bytes: The most bytes of their tensors on disk.
        keep_results_ms: How long an ended task is kept.
        disk_bytes: The largest size of the database file; None sets no limit but the disk's.
    """

    tasks: int = 100_000
    bytes: int = 1_000_000_000
    keep_results_ms: int = 86_400_000
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A submission, unchecked. Two with equal content under one id are the same task.

    Attributes:
        model: The model's name.
        variant: The only variant that is accepted, or None.
        priority: Which of the waiting tasks runs first.
        specs: The tensors as they were sent.
        body: The tensors' bytes.
    """

    model: Any
    variant: Any
    priority: Any
    specs: Any
    body: Body

    def digest(self) -> bytes:
        """A hash of the content, stored for comparison; the order of the tensors does not count.

        Raises:
            InvalidInput: The body does not match the specs.
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
    """The work of a task.

    Attributes:
        model: The model's name.
        variant: The only variant that is accepted, or None.
        specs: The tensors of one item, in the order of the model's signature.
        body: The tensors' bytes.
        has_batch: Whether they came with a batch dimension of 1; the answer then has one too.
        priority: Which of the waiting tasks runs first, from 0 to 7.
        asked: The submission as it came.
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
    """A task to be stored.

    Attributes:
        tenant: The owner.
        id: Unique among the tenant's tasks.
        content: The work.
        submitted_ms: When it was submitted, by the task clock.
        deadline_ms: When its result is no longer of use, by the task clock.
        tenant_tasks: How many tasks the tenant may keep.
        tenant_bytes: How many bytes of tensors the tenant may keep.
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
        seq: The task's number, increasing in the order of submission; never reused.
        tenant: The owner.
        id: Unique among the tenant's tasks.
        kind: The class of its requests.
        has_batch: As in `Content`.
        priority: As in `Content`.
        bytes: Size of the stored tensors: its inputs, and later its outputs.
        submitted_ms: As in `NewTask`.
        deadline_ms: As in `NewTask`.
        attempts: How often it ran and failed.
        outcome: How it ended; None until then.
        reason: Why it ended so, for people.
        ended_ms: When it ended, by the task clock.
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
    """How a task ended, stored until the task is purged.

    Attributes:
        seq: The task's number.
        outcome: How it ended.
        reason: Why it ended so, for people.
        at_ms: When it ended, by the task clock.
        header: The header of its `result` message; None if there is no result.
        body: The outputs.
    """

    seq: int
    outcome: Outcome
    reason: str
    at_ms: int
    header: dict[str, Any] | None = None
    body: Body | None = None


def checked_id(value: Any) -> str:
    """Checks the id of a task.

    Raises:
        InvalidInput: The id is not printable text of 1 to 128 characters.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID or not value.isprintable():
        raise InvalidInput(
            f"a task's id is printable text of 1 to {LONGEST_ID} characters, not {value!r:.200}"
        )
    return value


def class_of(model: str, variant: str | None, specs: Specs) -> RequestClass:
    """The class of a task with these tensors."""
    return RequestClass(model, variant, tuple(tuple(shape) for _, _, shape in specs))
