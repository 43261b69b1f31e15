"""The message of a forwarded request, and how long to avoid a box that refused one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler import wire
from scheduler.core.commands import Dispatch
from scheduler.core.requests import DEFAULT_PRIORITY
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.shrinking import Shrunk

LEAST_HOLD_NS, LONGEST_HOLD_NS = 2_000_000, 200_000_000
"""Bounds on how long a box that refused is not asked again; its next report says more."""


def forwarded(
    dispatch: Dispatch, submission: Submission, shrunk: Shrunk | None
) -> tuple[wire.Header, list[Any]]:
    """The `infer` message of a request, which still lacks its budget, and its body.

    Args:
        dispatch: The command to send it.
        submission: The request.
        shrunk: Its inputs in a smaller form; None if they are sent unchanged.
    """
    specs, body = submission.specs, [submission.body]
    header: wire.Header = {
        "t": "infer",
        "id": dispatch.run_id,
        "model": dispatch.model,
        "variant": dispatch.variant,
        "in": specs,
        "weight": submission.weight,
    }
    if submission.priority != DEFAULT_PRIORITY:
        header["priority"] = submission.priority
    if submission.accept_late:
        header["late"] = True
    if submission.kind.exact:
        header["exact"] = True
    if submission.trace:
        header["trace"] = submission.trace
    if shrunk is not None:
        tensors = wire.unpack_tensors(specs, submission.body)
        header["in"], body = wire.pack_tensors({**tensors, **shrunk.items[0]})
        header["enc"] = dict(shrunk.texts)
    return header, body


def hold_ns(budget_ns: int, detail: Any) -> int:
    """How long a refusal is likely to be repeated, judging by its counter-offer if it has one."""
    said = detail if isinstance(detail, Mapping) else {}
    hold_ns: float = LONGEST_HOLD_NS
    if offers := said.get("earliest_budget_ms"):
        hold_ns = min(offers.values()) * 1e6 - budget_ns
    elif retry_ms := said.get("retry_after_ms"):
        hold_ns = retry_ms * 1e6
    return min(LONGEST_HOLD_NS, max(LEAST_HOLD_NS, int(hold_ns)))
