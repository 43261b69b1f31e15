"""Structured logs on stderr, the same from every process of the daemon."""

from __future__ import annotations

import logging
import sys

import structlog

from scheduler.config.box import LogConfig
from scheduler.lasting_output import lasting_stderr

_PATIENCE_S = 0.2
"""How long the event loop waits at most for whoever reads the log."""


def set_up_logging(config: LogConfig) -> None:
    """Sends structured logs to stderr, in the configured format and level.

    From now on stderr drops what can't be written, such as to a full disk. An error would reach
    what logs: a lost target would still count as up, or a link would end.

    Tracebacks omit the values of variables: some of those are passwords and tokens.
    """
    sys.stderr = lasting_stderr(_PATIENCE_S, line_buffering=True)
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
