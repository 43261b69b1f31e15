"""Structured logs on stderr, the same from every process of the daemon."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog

from scheduler.config.box import LogConfig


class _Dropping:
    """Writes text to a file, and drops what can't be written, for example to a full disk.

    An error would reach what logs: a lost target would still count as up, or a link would end.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def set_up_logging(config: LogConfig) -> None:
    """Sends structured logs to stderr, in the configured format and level.

    Tracebacks omit the values of variables: some of those are passwords and tokens.
    """
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if console
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelName(config.level.upper())
        ),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Dropping(sys.stderr))),
    )
