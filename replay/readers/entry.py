"""The form that every trace is read into, whatever its format."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from replay.readers.lines import Lines


class TraceEntry(NamedTuple):
    """A request of a trace.

    Attributes:
        at_ns: When it arrived, counted from the start of the trace.
        budget_ns: Time from arrival to deadline; None if the trace has no deadlines.
        size_bytes: The size of its inputs; None if the trace does not tell.
        label: Its kind in the trace's own words, by which a mix can choose a model.
        source: Its sender; all requests of one sender are of the same kind.
        tokens: The tokens that a language model read and wrote; None for other traces.
        model: The model it asks for; None if the trace does not tell.
    """

    at_ns: int
    budget_ns: int | None = None
    size_bytes: int | None = None
    label: str | None = None
    source: str | None = None
    tokens: tuple[int, int] | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of traces.

    Attributes:
        name: The name that selects it.
        looks_like: What its first line looks like, for errors.
        recognises: Whether a first line is of this format.
        read: Yields the entries in the order of the file, lazily. The random numbers place arrivals
            that the trace only counts.
        from_first: Whether time 0 is the first arrival; otherwise it is the start of the first
            interval.
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

    Its size is that of its prompt. Its label says how much work it is, by the total number of
    tokens: `small` to 512, `medium` to 2,048, `large` above. A mix can then give each label its own
    model or variant.
    """
    tokens = read + written
    label = "small" if tokens <= SMALL_TOKENS else "medium" if tokens <= MEDIUM_TOKENS else "large"
    return TraceEntry(at_ns, size_bytes=read * TOKEN_BYTES, label=label, tokens=(read, written))
