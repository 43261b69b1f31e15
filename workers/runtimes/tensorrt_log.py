"""What TensorRT says went wrong: its calls return nothing, and its logger has the reason."""

from __future__ import annotations

from typing import Any

from workers.runtimes.base import one_line


def error_logger(trt: Any, said: list[str]) -> Any:
    """A logger that appends each error to a list.

    Args:
        trt: The module `tensorrt`.
        said: The list.
    """
    severe = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in severe:
                said.append(message)

    return Logger()


def last(said: list[str]) -> str | None:
    """The last of these errors on one line; None if there are none."""
    return one_line(said[-1]) if said else None
