"""Readers of recorded traces: one file per format, all of them streams."""

from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines, TraceError, open_lines
from replay.readers.opening import FORMATS, format_of, open_trace, read_lines

__all__ = [
    "FORMATS",
    "Lines",
    "TraceEntry",
    "TraceError",
    "TraceFormat",
    "format_of",
    "open_lines",
    "open_trace",
    "read_lines",
]
