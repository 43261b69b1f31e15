"""Says which bodies in shared memory may be overwritten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from scheduler.wire import Header


class Returns:
    """Collects where bodies were that nothing refers to any more, until their writer is told.

    Args:
        tell: Sends the writer a message; called on the event loop, soon after a body has ended.
    """

    def __init__(self, tell: Callable[[Header], None]) -> None:
        """Nothing has ended."""
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._starts: list[int] = []
        self._is_over = False

    def ended(self, start: int) -> None:
        """A body has ended; called by any thread, as it is whichever looked at the body last."""
        if threading.get_ident() != self._thread:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.ended, start)
        elif not self._is_over:
            if not self._starts:
                self._loop.call_soon(self._tell_if_any)
            self._starts.append(start)

    def message(self) -> Header | None:
        """What to tell the writer now, together with something else; None if nothing has ended."""
        starts, self._starts = self._starts, []
        return {"t": "free", "at": starts} if starts else None

    def close(self) -> None:
        """The writer is gone."""
        self._is_over = True
        self._starts.clear()

    def _tell_if_any(self) -> None:
        if (message := self.message()) is not None:
            self._tell(message)
