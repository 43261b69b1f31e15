"""Mooncake traces: `{"timestamp": ms, "input_length": n, "output_length": n, ...}` on each line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from replay.readers.entry import TraceEntry, TraceFormat, token_entry
from replay.readers.lines import LARGEST_COUNT, Lines, shown

_LOOKS_LIKE = '{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [0, 1]}'


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """One entry per line; `hash_ids`, the blocks shared with other prompts, are ignored.

    `token_entry` says how the lengths are used.
    """
    del chance
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise lines.error(f"{shown(line)} is no JSON", _LOOKS_LIKE) from None
        if not isinstance(row, dict):
            raise lines.error(f"{shown(line)} is no JSON object", _LOOKS_LIKE)
        at_ms = _field(lines, row, "timestamp")
        yield token_entry(
            at_ms * 1_000_000 if isinstance(at_ms, int) else round(at_ms * 1e6),
            int(_field(lines, row, "input_length")),
            int(_field(lines, row, "output_length")),
        )


def _field(lines: Lines, row: dict[str, Any], name: str) -> int | float:
    if name not in row:
        raise lines.error(f"no {name!r} in {shown(', '.join(row) or '{}')}", _LOOKS_LIKE)
    value = row[name]
    # To Python a bool is an int; NaN fails the comparison.
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_COUNT:
        wanted = f"a number from 0 to {LARGEST_COUNT:g}"
        raise lines.error(f"{name!r} is {shown(json.dumps(value))}", wanted)
    number: int | float = value
    return number


FORMAT = TraceFormat(
    name="mooncake",
    looks_like=_LOOKS_LIKE,
    recognises=lambda line: line.lstrip().startswith("{"),
    read=read,
)
