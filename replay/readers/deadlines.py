"""Arrivals with their deadlines: `arrival_ms,qos,deadline_ms`.

The deadline counts from the arrival, like all budgets here. The class of service (`qos`) is a
label: the mix says what it means, since traces disagree on whether 0 is the best or the worst. A
trace of requests that are all alike needs no such column. A column `model` names the model that
each request asks for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from replay.readers.columns import header_cells, rows
from replay.readers.entry import TraceEntry, TraceFormat
from replay.readers.lines import Lines

_COLUMNS = ("arrival_ms", "deadline_ms")


def read(lines: Lines, chance: random.Random) -> Iterator[TraceEntry]:
    """One entry per row."""
    del chance
    header = header_cells(lines.peek() or "")
    labelled, named = ("qos" in header, "model" in header)
    wanted = [*_COLUMNS, *["qos"] * labelled, *["model"] * named]
    for arrival, deadline, *rest in rows(lines, wanted):
        budget_ns = lines.ns_of_ms(deadline, "deadline_ms")
        if not budget_ns:
            raise lines.error("deadline_ms is 0", "the ms from the arrival to its deadline")
        at_ns = lines.ns_of_ms(arrival, "arrival_ms")
        model = rest[-1].strip() if named else None
        if model == "":
            raise lines.error("model is empty", "the name of a model")
        label = rest[0].strip() or None if labelled else None
        yield TraceEntry(at_ns, budget_ns, label=label, model=model)


FORMAT = TraceFormat(
    name="deadlines",
    looks_like="arrival_ms,qos,deadline_ms",
    recognises=lambda line: "arrival_ms" in header_cells(line) and "," in line,
    read=read,
)
