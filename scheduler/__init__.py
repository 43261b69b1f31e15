"""The scheduler of a box, and the Python API to it.

Names are imported when they are first used: `scheduler.core` stays free of everything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import CancelledError

    from scheduler.address import AddressError
    from scheduler.async_client import AsyncClient
    from scheduler.client import Client
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
        RequestEnded,
        TaskConflict,
        TaskNotFound,
        Unauthorized,
        Unavailable,
    )
    from scheduler.result import Result, Timing
    from scheduler.tasks import AsyncTask, Task, TaskStatus

__all__ = [
    "AddressError",
    "AsyncClient",
    "AsyncTask",
    "CancelledError",
    "Client",
    "DeadlineExpired",
    "DeadlineInfeasible",
    "ExecutionFailed",
    "Forbidden",
    "InvalidInput",
    "LaxityError",
    "ModelNotFound",
    "Outcome",
    "Overloaded",
    "ProtocolError",
    "RequestEnded",
    "Result",
    "Task",
    "TaskConflict",
    "TaskNotFound",
    "TaskStatus",
    "Timing",
    "Unauthorized",
    "Unavailable",
]

_HOMES = {
    "AddressError": "scheduler.address",
    "AsyncClient": "scheduler.async_client",
    "AsyncTask": "scheduler.tasks",
    "CancelledError": "concurrent.futures",
    "Client": "scheduler.client",
    "Outcome": "scheduler.core.outcomes",
    "Result": "scheduler.result",
    "Task": "scheduler.tasks",
    "TaskStatus": "scheduler.tasks",
    "Timing": "scheduler.result",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'scheduler' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "scheduler.errors")), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
