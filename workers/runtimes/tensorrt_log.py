"""What TensorRT says went wrong: its calls return nothing, and its logger has the reason."""

from __future__ import annotations

from functools import cache
from typing import Any

from workers.runtimes.base import one_line

_KEPT = 16
"""The latest errors kept of each logger: a model that fails for days must not fill memory."""


def error_logger(trt: Any, said: list[str]) -> Any:
    """A logger that appends each error to a list.

    Args:
        trt: The module `tensorrt`.
        said: The list, which keeps the latest.
    """
    severe = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in severe:
                said.append(message)
                del said[:-_KEPT]

    return Logger()


@cache
def register_plugins(trt: Any) -> Any:
    """Register TensorRT's own plugins, which implement some of ONNX's operators.

    Without them neither an engine that has one can be built nor deserialised, such as one of
    RoiAlign; see `init_libnvinfer_plugins` in TensorRT's Python API reference.

    Args:
        trt: The module `tensorrt`.

    Returns:
        The logger, which the plugins keep using.
    """
    logger = error_logger(trt, [])
    trt.init_libnvinfer_plugins(logger, "")
    return logger


def last(said: list[str]) -> str | None:
    """The last of these errors on one line; None if there are none."""
    return one_line(said[-1]) if said else None
