"""Which shared memory the process at the other end of a connection has mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.shared_pages import SharedPages
from scheduler.wire import Header


class Mappings:
    """Has the other end map memory before anything in it is referred to.

    Args:
        pages: The memory by number.
        tell: Sends the other end a message.
    """

    def __init__(self, pages: Mapping[int, SharedPages], tell: Callable[[Header], None]) -> None:
        """Nothing is mapped."""
        self._pages = pages
        self._tell = tell
        self._told: set[int] = set()
        self._mapped: set[int] = set()

    def has(self, number: int) -> bool:
        """Whether the other end has mapped this memory; if it wasn't told to yet, it is now."""
        if number not in self._told:
            # However often clients and workers come and go, the other end maps little in vain.
            self.forget_gone()
            self._tell({"t": "map", "pages": number, **self._pages[number].where})
            self._told.add(number)
        return number in self._mapped

    def mapped(self, number: int) -> None:
        """The other end has mapped it."""
        if number in self._told:
            self._mapped.add(number)

    def is_gone(self, number: int) -> bool:
        """Whether nothing will be in this memory any more, as its client has left."""
        return number not in self._pages

    def forget_gone(self) -> None:
        """Has the other end unmap what nothing will be in any more."""
        for number in self._told - self._pages.keys():
            self._tell({"t": "forget", "pages": number})
            self._told.discard(number)
            self._mapped.discard(number)
