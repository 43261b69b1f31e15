"""How each door reports the outcome of a request: the one table of statuses and codes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from dataclasses import dataclass
from typing import Any

from scheduler.core.outcomes import Outcome
from scheduler.errors import (
    DeadlineExpired,
    DeadlineInfeasible,
    ExecutionFailed,
    Forbidden,
    InvalidInput,
    LaxityError,
    ModelNotFound,
    Overloaded,
    ProtocolError,
    TaskConflict,
    TaskNotFound,
    Unauthorized,
    Unavailable,
)


class TooLarge(InvalidInput):
    """A part of the request is beyond a limit."""

    code = "too_large"


class HeadTooLarge(TooLarge):
    """Request line and headers are beyond the limit."""

    code = "head_too_large"


class TooSlow(InvalidInput):
    """The client takes too long to send."""

    code = "too_slow"


class NoSuchPath(InvalidInput):
    """Nothing exists at that path."""

    code = "not_found"


class MethodNotAllowed(InvalidInput):
    """The path exists, but not for that method."""

    code = "method_not_allowed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a door reports it.

    Attributes:
        http: The HTTP status.
        grpc: The name of the gRPC status.
        code: The outcome, or the kind of error if the request had none.
        message: The error for people.
        detail: The error for programs, including the counter-offer.
        retry_after_s: After how many seconds to try again; None if the status has no `Retry-After`.
    """

    http: int
    grpc: str
    code: str
    message: str
    detail: dict[str, Any]
    retry_after_s: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON; Triton clients read only `error`."""
        return {"error": self.message, "code": self.code, **self.detail}


_STATUSES: tuple[tuple[type[LaxityError], int, str], ...] = (
    (DeadlineInfeasible, 429, "RESOURCE_EXHAUSTED"),
    (Overloaded, 429, "RESOURCE_EXHAUSTED"),
    (DeadlineExpired, 504, "DEADLINE_EXCEEDED"),
    (Unavailable, 503, "UNAVAILABLE"),
    (ExecutionFailed, 500, "INTERNAL"),
    (ModelNotFound, 404, "NOT_FOUND"),
    (HeadTooLarge, 431, "INVALID_ARGUMENT"),
    (TooLarge, 413, "INVALID_ARGUMENT"),
    (TooSlow, 408, "INVALID_ARGUMENT"),
    (NoSuchPath, 404, "NOT_FOUND"),
    (MethodNotAllowed, 405, "UNIMPLEMENTED"),
    (TaskConflict, 409, "ALREADY_EXISTS"),
    (TaskNotFound, 404, "NOT_FOUND"),
    (InvalidInput, 400, "INVALID_ARGUMENT"),
    (Unauthorized, 401, "UNAUTHENTICATED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (ProtocolError, 502, "INTERNAL"),
)
_RETRY = (429, 503)
"""The statuses that get a `Retry-After` header."""

_RESERVED = frozenset(("error", "code"))

# The messages of Triton's core, which clients match. For other errors laxity's own stay.
_TRITON: tuple[tuple[type[LaxityError], int, str, str], ...] = (
    (DeadlineInfeasible, 503, "UNAVAILABLE", "Request timeout expired"),
    (DeadlineExpired, 503, "UNAVAILABLE", "Request timeout expired"),
    (Overloaded, 503, "UNAVAILABLE", "Exceeds maximum queue size"),
)


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is a mistake of the door's own, to be logged."""
    cancelled = asyncio.CancelledError | concurrent.futures.CancelledError
    return not isinstance(error, LaxityError | cancelled)


def refusal_of(error: BaseException, compat: str = "laxity") -> Refusal:
    """Converts an error to the form in which a door reports it.

    Args:
        error: The error that a request ended with.
        compat: `triton` for that server's codes and messages.
    """
    if isinstance(error, asyncio.CancelledError | concurrent.futures.CancelledError):
        return Refusal(499, "CANCELLED", Outcome.CANCELLED.value, str(error) or "cancelled", {})
    if not isinstance(error, LaxityError):
        return Refusal(500, "INTERNAL", "internal", "internal error of the door; see its log", {})
    http, grpc, message = 500, "INTERNAL", str(error)
    for kind, status, name in _STATUSES:
        if isinstance(error, kind):
            http, grpc = status, name
            break
    detail = {key: value for key, value in error.detail.items() if key not in _RESERVED}
    if isinstance(error, DeadlineInfeasible) and error.earliest_ms is not None:
        detail["earliest_ms"] = error.earliest_ms
    if compat == "triton":
        http, grpc, message = _as_triton(error, http, grpc, message)
    retry_after_s = _retry_after_s(detail) if http in _RETRY else None
    return Refusal(http, grpc, error.code, message, detail, retry_after_s)


def _as_triton(error: LaxityError, http: int, grpc: str, message: str) -> tuple[int, str, str]:
    for kind, status, name, words in _TRITON:
        if isinstance(error, kind):
            return status, name, words
    if isinstance(error, ModelNotFound) and "model" in error.detail:
        return http, grpc, f"Request for unknown model: '{error.detail['model']}' is not found"
    return http, grpc, message


def _retry_after_s(detail: dict[str, Any]) -> int:
    """Whole seconds, as the header requires; `retry_after_ms` in the detail is finer."""
    after_ms = detail.get("retry_after_ms")
    return max(1, math.ceil(after_ms / 1e3)) if isinstance(after_ms, int | float) else 1
