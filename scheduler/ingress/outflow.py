"""Results of durable tasks on their way to a client, which may read them slowly or never."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.wire import Header


class Outflow:
    """The results for one connection, each written once the one before has left the box.

    The memory of a result counts as taken until then. In one large write buffer all results would
    leave together, and no further one could be read from disk meanwhile.

    Args:
        write: Writes a message to the connection, if it is still there.
    """

    def __init__(self, write: Callable[[Header, Sequence[Any]], None]) -> None:
        """Starts without results."""
        self._write = write
        self._waiting: deque[tuple[Header, Sequence[Any], Callable[[], None]]] = deque()
        self._written: list[Callable[[], None]] = []
        self._is_full = False

    def send(self, header: Header, body: Sequence[Any], left: Callable[[], None]) -> None:
        """Sends a result, now or later; `left` is called once it has left or can't any more."""
        self._waiting.append((header, body, left))
        self._send_some()

    def stop(self) -> None:
        """Writes no more: the connection's write buffer is full."""
        self._is_full = True

    def go_on(self) -> None:
        """Continues after `stop`: the buffer is almost empty, or the connection is gone."""
        self._is_full = False
        self._send_some()

    def _send_some(self) -> None:
        while not self._is_full:
            written, self._written = self._written, []
            for left in written:
                left()
            if not self._waiting:
                return
            header, body, left = self._waiting.popleft()
            self._written.append(left)
            self._write(header, body)  # may call `stop`
