"""Shared memory of a worker, in which the scheduler reads large outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scheduler.own_pages import OwnPages
from scheduler.shared_pages import LEAST_BYTES, Blocks
from scheduler.wire import Header

_BYTES = 256 << 20
"""Its size; only what is used takes memory."""


class ResultMemory:
    """Places large outputs where one scheduler reads them.

    Its successor gets memory of its own: whoever was sent where an output is may still read it.

    Args:
        offer: Called with the message that offers the memory, once there is use for it.
    """

    def __init__(self, offer: Callable[[Header], None]) -> None:
        """Nothing is offered, so all outputs are to be sent."""
        self._offer = offer
        self._pages: OwnPages | None = None
        self._blocks: Blocks | None = None

    def put(self, parts: Sequence[Any], size: int) -> int | None:
        """Copies one item's outputs of `size` bytes; returns where, or None if they are to be sent.

        Offers the memory if it is not yet.
        """
        if size < LEAST_BYTES:
            return None
        if self._pages is None:
            try:
                self._pages = OwnPages(_BYTES)
            except OSError:  # such as too many open files
                return None
            self._offer({"t": "results", **self._pages.where})
        start = None if self._blocks is None else self._blocks.take(size)
        if start is not None:
            self._pages.write(start, parts)
        return start

    def mapped(self) -> None:
        """The scheduler reads the memory from now on."""
        if self._pages is not None:
            self._blocks = Blocks(self._pages)

    def free(self, starts: Sequence[int]) -> None:
        """These outputs may be overwritten."""
        if self._blocks is not None:
            for start in starts:
                self._blocks.give_back(start)

    def tidy(self) -> None:
        """Frees memory that has not been used since the last call."""
        if self._blocks is not None:
            self._blocks.free_unused()
