"""Reads the database rows of durable tasks."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgpack

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.durable.records import KeptTask, Specs, class_of
from scheduler.errors import InvalidInput, Unavailable
from scheduler.wire import body_bytes

COLUMNS = (
    "seq, tenant, id, model, variant, specs, has_batch, priority, bytes, submitted_ms, "
    "deadline_ms, attempts, outcome, reason, ended_ms"
)
"""Columns of the table `tasks`, in the order that `kept_from` expects."""


def specs_from(packed: bytes) -> Specs | None:
    """Decodes specs from disk; None if they are damaged, which SQLite does not notice."""
    try:
        specs: Specs = msgpack.unpackb(packed)
        body_bytes(specs)
    except (ValueError, msgpack.UnpackException, InvalidInput):
        return None
    return specs


def header_from(packed: bytes) -> dict[str, Any]:
    """Decodes the header of a result from disk.

    Raises:
        Unavailable: It is damaged, which SQLite does not notice.
    """
    with suppress(ValueError, msgpack.UnpackException):
        if isinstance(header := msgpack.unpackb(packed), dict):
            return header
    raise Unavailable("its result is damaged on disk", {"durable": False})


@lru_cache(1024)
def _kind_of(model: str, variant: str | None, packed: bytes) -> RequestClass:
    """The class of a task, one shared object for equal tasks."""
    return class_of(model, variant, specs_from(packed) or [])


def kept_from(row: tuple[Any, ...]) -> KeptTask:
    """The task in a row of `COLUMNS`."""
    seq, tenant, id_, model, variant, specs, has_batch, priority, size, *rest = row
    submitted_ms, deadline_ms, attempts, outcome, reason, ended_ms = rest
    return KeptTask(
        *(seq, tenant, id_, _kind_of(model, variant, specs), bool(has_batch)),
        *(priority, size, submitted_ms, deadline_ms, attempts),
        *(None if outcome is None else Outcome(outcome), reason, ended_ms),
    )
