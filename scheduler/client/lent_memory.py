"""Memory that a daemon on the same machine has lent, for bodies that then need not be sent."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

from scheduler.shared_pages import TIDY_S, Blocks, SharedPages, opened
from scheduler.wire import Header


class LentMemory:
    """Places bodies until the daemon says that nothing refers to them any more."""

    def __init__(self, pages: SharedPages) -> None:
        """Empty."""
        self._pages = pages
        self._blocks = Blocks(pages)
        self._will_tidy = False

    def put(self, buffers: Sequence[Any], size: int) -> int | None:
        """Copies a body of `size` bytes; returns where it begins, or None if there is no room."""
        start = self._blocks.take(size)
        if start is not None:
            self._pages.write(start, buffers)
        return start

    def free(self, starts: Sequence[int]) -> None:
        """These bodies may be overwritten.

        Raises:
            KeyError: There is none at one of these.
        """
        for start in starts:
            self._blocks.give_back(start)
        if self._blocks.is_large and not self._will_tidy:
            self._will_tidy = True
            # Once its connection is gone, nothing else keeps it.
            asyncio.get_running_loop().call_later(TIDY_S, _tidy, weakref.ref(self))

    def tidy(self) -> None:
        """Frees memory that has not been used lately."""
        self._will_tidy = False
        self._blocks.free_unused()
        self.free(())


def _tidy(lent: weakref.ref[LentMemory]) -> None:
    if (found := lent()) is not None:
        found.tidy()


def borrowed(header: Header) -> LentMemory | None:
    """The memory in a `memory` message; None if it can't be seen from here, as in a container."""
    try:
        return LentMemory(opened(header, writable=True))
    except OSError:
        return None
