"""The bodies of requests and results that other processes of the box read where they are."""

from __future__ import annotations

import asyncio
import errno
import sys
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable

import structlog

from scheduler.daemon.mappings import Mappings
from scheduler.own_pages import OwnPages
from scheduler.shared_pages import LEAST_BYTES, TIDY_S, Blocks, SharedPages, address_of
from scheduler.wire import Header

log = structlog.get_logger()

_PAGES = 0
"""The number of the box's own pages."""

FILES_EACH = 2
"""How many files stay open for what is lent to a client: the memory's own, and the mapping's."""


class SharedBodies:
    """Shared memory of the box: its own, what clients were lent, and that of workers' outputs.

    Args:
        size: The most bytes that the box keeps in its own, and each client in what it is lent.
        most_lent: How many clients are lent memory at once.

    Attributes:
        pages: The memory by number; a number is not used again.

    Raises:
        OSError: The kernel doesn't grant it.
    """

    def __init__(self, size: int, most_lent: int = sys.maxsize) -> None:
        """Holds nothing."""
        own = OwnPages(size)
        self.pages: dict[int, SharedPages] = {_PAGES: own}
        self._size = size
        self._most_lent = most_lent
        self._blocks = Blocks(own)
        # Bodies end in whichever thread drops them last; only the event loop gives back.
        self._ended: deque[int] = deque()
        self._last = _PAGES
        self._lent: dict[int, OwnPages] = {}
        self._mappings: weakref.WeakSet[Mappings] = weakref.WeakSet()
        self._starts: list[tuple[int, int]] = []
        self._sort()

    def take(self, size: int) -> memoryview | None:
        """Memory for a body; None for a small one, or if there is no room."""
        self._give_back()
        start = self._blocks.take(size) if size >= LEAST_BYTES else None
        return None if start is None else self.body(_PAGES, start, size, self._ended.append)

    async def keep_tidy(self) -> None:
        """Frees memory that has not been used for some seconds, until cancelled."""
        while True:
            await asyncio.sleep(TIDY_S)
            self.tidy()

    def tidy(self) -> None:
        """Frees memory that has not been used since the last call, or that nobody else has."""
        self._give_back()
        self._blocks.free_unused()
        for mappings in self._mappings:
            mappings.forget_gone()

    def _give_back(self) -> None:
        while self._ended:
            self._blocks.give_back(self._ended.popleft())

    def lend(self) -> int | None:
        """New memory for a client, by number; None if the kernel doesn't grant it, or enough is."""
        try:
            if len(self._lent) >= self._most_lent:
                raise OSError(errno.EMFILE, "The files left are for connections")
            pages = OwnPages(self._size)
        except OSError as error:  # such as too many open files: the client sends its bodies
            log.warning("no memory to share with a client", error=str(error))
            return None
        number = self.adopt(pages)
        self._lent[number] = pages
        return number

    def withdraw(self, number: int) -> None:
        """The client is gone; bodies in use stay where they are."""
        self._lent.pop(number).close()
        self.abandon(number)

    def adopt(self, pages: SharedPages) -> int:
        """Adds memory; returns its number."""
        self._last += 1
        self.pages[self._last] = pages
        self._sort()
        return self._last

    def abandon(self, number: int) -> None:
        """Nothing will be in it any more that is not yet; bodies in use stay where they are."""
        del self.pages[number]
        self._sort()

    def mappings(self, tell: Callable[[Header], None]) -> Mappings:
        """What the other end of a connection has mapped; `tell` sends it a message."""
        made = Mappings(self.pages, tell)
        self._mappings.add(made)
        return made

    def body(
        self, number: int, start: int, size: int, ended: Callable[[int], object]
    ) -> memoryview:
        """A body in some pages; `ended` is called with its start once nothing refers to it."""
        return lasting(self.pages[number], start, size, ended)

    def place_of(self, body: memoryview) -> tuple[int, int] | None:
        """The number of the pages that a body is in, and where; None if it is in none."""
        if len(body) < LEAST_BYTES:
            return None
        address = address_of(body)
        index = bisect_right(self._starts, (address, self._last)) - 1
        if index < 0:
            return None
        first, number = self._starts[index]
        start = address - first
        return (number, start) if start + len(body) <= self.pages[number].size else None

    def _sort(self) -> None:
        found = ((pages.first_address, number) for number, pages in self.pages.items())
        self._starts = sorted(found)


def lasting(
    pages: SharedPages, start: int, size: int, ended: Callable[[int], object]
) -> memoryview:
    """A body in shared memory; `ended` is called with its start once nothing refers to it."""
    block = pages.block(start, size)
    weakref.finalize(block, ended, start).atexit = False
    return block.data
