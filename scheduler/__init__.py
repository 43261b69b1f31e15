"""The scheduler of a box, and the Python API to it.

Names are imported on first use, so importing `scheduler.core` imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import CancelledError

    from scheduler.address import AddressError
    from scheduler.client.async_client import AsyncClient
    from scheduler.client.sync_client import Client
    from scheduler.client.tasks import AsyncTask, Task, TaskStatus
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
    "AsyncClient": "scheduler.client.async_client",
    "AsyncTask": "scheduler.client.tasks",
    "CancelledError": "concurrent.futures",
    "Client": "scheduler.client.sync_client",
    "Outcome": "scheduler.core.outcomes",
    "Result": "scheduler.result",
    "Task": "scheduler.client.tasks",
    "TaskStatus": "scheduler.client.tasks",
    "Timing": "scheduler.result",
}


if not TYPE_CHECKING:  # with this in sight, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'scheduler' has no attribute {name!r}")
        return getattr(import_module(_HOMES.get(name, "scheduler.errors")), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
