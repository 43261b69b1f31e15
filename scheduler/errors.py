"""The typed errors of the Python API, and their codes on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from scheduler.core.outcomes import Outcome


class LaxityError(Exception):
    """Base of the errors of the Python API; misuse of the API raises Python's own errors.

    Attributes:
        code: The error's name on the wire, from a closed, low-cardinality set.
        detail: Figures that go with the message, e.g. a counter-offer.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, detail: Mapping[str, Any] | None = None) -> None:
        """Keeps the message for people and the detail for programs."""
        super().__init__(message)
        self.detail: dict[str, Any] = dict(detail or {})


class RequestEnded(LaxityError):
    """A request ended without a result, or was refused."""


class DeadlineInfeasible(RequestEnded):
    """No target can meet the deadline; `earliest_ms` is the counter-offer."""

    code = Outcome.INFEASIBLE.value

    @property
    def earliest_ms(self) -> float | None:
        """The smallest budget that some target could meet now, in milliseconds.

        It counts from the refusal. A request that was admitted and had to be dropped later
        (`detail["stage"]` is `evicted`) may have had more.
        """
        budgets = self.detail.get("earliest_budget_ms") or {}
        return min(budgets.values()) if budgets else None


class Overloaded(RequestEnded):
    """A queue, memory or quota limit refused the request."""

    code = Outcome.OVERLOADED.value


class DeadlineExpired(RequestEnded):
    """The request was admitted and its deadline passed."""

    code = Outcome.EXPIRED.value


class Unavailable(RequestEnded):
    """No healthy target has the model, or the daemon can't be reached."""

    code = Outcome.UNAVAILABLE.value


SHUTTING_DOWN = "the box is shutting down"
"""Why a box that drains refuses a request: the message of an `Unavailable`, or of a goodbye."""


class ExecutionFailed(RequestEnded):
    """The runtime failed the request after the allowed attempts."""

    code = Outcome.FAILED.value


class InvalidInput(LaxityError):
    """The input was refused before it became a request."""

    code = "invalid_input"


class ModelNotFound(InvalidInput):
    """The repository has no such model or variant."""

    code = "model_not_found"

    @classmethod
    def unknown(cls, model: str, hint: str = "") -> ModelNotFound:
        """The error for an unknown model, as opposed to an unknown variant.

        Args:
            model: The name asked for.
            hint: What may have been meant, appended to the message.
        """
        return cls(f"model {model!r:.100} is not in the repository{hint}", {"model": model[:100]})

    @classmethod
    def among(cls, problems: Iterable[tuple[str, str]], model: str, hint: str) -> ModelNotFound:
        """Like `unknown`, but if the model exists and can't be served, the error says why.

        Args:
            problems: The models that can't be served, and why.
            model: As in `unknown`.
            hint: As in `unknown`.
        """
        reason = next((why for name, why in problems if name == model), None)
        if reason is None:
            return cls.unknown(model, hint)
        return cls(f"model {model!r:.100} can't be served: {reason}", {"model": model[:100]})


class TaskConflict(InvalidInput):
    """A durable task with the same id has different content."""

    code = "task_conflict"


class TaskNotFound(LaxityError):
    """The caller has no durable task with that id: never submitted, or its result has expired."""

    code = "task_not_found"


class Unauthorized(LaxityError):
    """The token is missing or wrong."""

    code = "unauthorized"


class Forbidden(LaxityError):
    """The caller is known but may not do this."""

    code = "forbidden"


class ProtocolError(LaxityError):
    """The bytes do not follow the native protocol; the connection is closed."""

    code = "protocol"


ERRORS: dict[str, type[LaxityError]] = {
    error.code: error
    for error in (
        DeadlineInfeasible,
        Overloaded,
        DeadlineExpired,
        Unavailable,
        ExecutionFailed,
        InvalidInput,
        ModelNotFound,
        TaskConflict,
        TaskNotFound,
        Unauthorized,
        Forbidden,
        ProtocolError,
    )
}
"""Error class of each code on the wire."""


def error_from_code(code: str, message: str, detail: Any) -> Exception:
    """The exception for a code from the wire.

    `cancelled` is `concurrent.futures.CancelledError`, as for any future.

    Args:
        code: The code, which may be one of a later version.
        message: The error for people.
        detail: The error for programs; left out unless it is a map.
    """
    if code == Outcome.CANCELLED.value:
        return CancelledError(message)
    return ERRORS.get(code, LaxityError)(message, detail if isinstance(detail, Mapping) else None)
