"""Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import datetime, timezone

from replay.readers.columns import header_cells, rows
from replay.readers.entry import TraceEntry, TraceFormat, token_entry
from replay.readers.lines import Lines, shown

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

# The 2023 traces have 100 ns and no zone, the one of 2024 has microseconds and +00:00.
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """One entry per row; see `token_entry` for what becomes of the tokens."""
    del chance
    minute, minute_s = "", 0
    for stamp, context, generated in rows(lines, _COLUMNS):
        match = _TIMESTAMP.fullmatch(stamp.strip())
        if match is None:
            raise lines.error(
                f"TIMESTAMP is {shown(stamp)}", "one like 2023-11-16 18:15:46.6805900"
            )
        head, seconds, fraction, zone = match.groups(default="")
        # Most rows share their minute with the one before.
        if head + zone != minute:
            minute, minute_s = head + zone, _epoch_s(lines, head, zone)
        at_ns = (minute_s + int(seconds)) * 1_000_000_000 + int(fraction.ljust(9, "0"))
        yield token_entry(
            at_ns,
            lines.count(context, "ContextTokens"),
            lines.count(generated.strip(), "GeneratedTokens"),
        )


def _epoch_s(lines: Lines, minute: str, zone: str) -> int:
    try:
        moment = datetime.fromisoformat(minute + ("+00:00" if zone in ("", "Z") else zone))
        return int(moment.astimezone(timezone.utc).timestamp())
    except (ValueError, OverflowError) as error:
        raise lines.error(f"TIMESTAMP is no time ({error})", "a date and a time") from None


FORMAT = TraceFormat(
    name="azure-llm",
    looks_like=",".join(_COLUMNS),
    recognises=lambda line: "contexttokens" in header_cells(line),
    read=read,
)
