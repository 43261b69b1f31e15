"""What every trace comes to, whatever its format."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from replay.readers.lines import Lines


class TraceEntry(NamedTuple):
    """A request that somebody once sent.

    Attributes:
        at_ns: When it came, from the start of the trace.
        budget_ns: Time from arrival to deadline; None where the trace has no deadlines.
        size_bytes: What its inputs take; None where the trace does not tell.
        label: Its kind in the trace's own words, by which a mix can choose a model.
        source: Who sent it; all of one source are the same kind of request.
        tokens: Read and written by a language model; None for other traces.
    """

    at_ns: int
    budget_ns: int | None = None
    size_bytes: int | None = None
    label: str | None = None
    source: str | None = None
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of traces.

    Attributes:
        name: By which it can be asked for.
        looks_like: How its first line looks, for errors.
        recognises: Whether a first line is one of this format.
        read: The entries in the order of the file, read as they are asked for. Chance places
            arrivals that the trace only counts.
        from_first: Whether time 0 is the first arrival; it is the first interval otherwise.
    """

    name: str
    looks_like: str
    recognises: Callable[[str], bool]
    read: Callable[[Lines, random.Random], Iterator[TraceEntry]]
    from_first: bool = True


TOKEN_BYTES = 4
"""A token id is sent as an int32."""

SMALL_TOKENS = 512
MEDIUM_TOKENS = 2048


def token_entry(at_ns: int, read: int, written: int) -> TraceEntry:
    """A request to a language model.

    Its size is that of its prompt. Its label says what it costs, by all tokens together: `small`
    to 512, `medium` to 2,048, `large` above; so a mix can give each its own model or variant.
    """
    tokens = read + written
    label = "small" if tokens <= SMALL_TOKENS else "medium" if tokens <= MEDIUM_TOKENS else "large"
    return TraceEntry(at_ns, size_bytes=read * TOKEN_BYTES, label=label, tokens=(read, written))
