"""Readers of recorded traces: one file per format, all of them streams."""

from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, TraceError, open_lines
from replay.readers.opening import FORMATS, open_trace, read_lines

__all__ = [
    "FORMATS",
    "Lines",
    "TraceEntry",
    "TraceError",
    "TraceFormat",
    "open_lines",
    "open_trace",
    "read_lines",
]
