"""Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`."""

from __future__ import annotations

import random
from collections.abc import Iterator

from replay.readers.columns import header_cells, rows
from replay.readers.entry import TraceEntry, TraceFormat, token_entry
from replay.readers.lines import Lines
from replay.readers.moments import Moments

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """One entry per row; `token_entry` says how the tokens are used."""
    del chance
    moments = Moments(lines, "TIMESTAMP")
    for stamp, context, generated in rows(lines, _COLUMNS):
        at_ns = moments.ns(stamp.strip())
        yield token_entry(
            at_ns,
            lines.count(context, "ContextTokens"),
            lines.count(generated.strip(), "GeneratedTokens"),
        )


FORMAT = TraceFormat(
    name="azure-llm",
    looks_like=",".join(_COLUMNS),
    recognises=lambda line: "contexttokens" in header_cells(line),
    read=read,
)
