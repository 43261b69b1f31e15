"""Memory of the box that a client on it writes the bodies of its requests to."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.daemon.returns import Returns
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.errors import InvalidInput
from scheduler.shared_pages import LEAST_BYTES
from scheduler.wire import ALIGNMENT, Body, Header, body_bytes


class Lending:
    """The memory that one connection has been lent.

    It is lent with the first large body that the client sends. The client may not change a body
    until it is told that nothing refers to it any more: its request may have ended while a worker
    still reads it.

    Args:
        shared: The bodies that workers can read where they are.
        tell: Sends the client a message; called on the event loop.

    Attributes:
        returns: Says which bodies the client may overwrite.
    """

    def __init__(self, shared: SharedBodies, tell: Callable[[Header], None]) -> None:
        """Nothing is lent."""
        self._shared = shared
        self._tell = tell
        self._number: int | None = None
        self._is_tried = False
        self.returns = Returns(tell)

    def note(self, body: Body) -> None:
        """Lends the client memory if it has sent a body that is better placed there."""
        if not self._is_tried and len(body) >= LEAST_BYTES:
            self._is_tried = True
            self._number = self._shared.lend()
            if self._number is not None:
                self._tell({"t": "memory", **self._shared.pages[self._number].where})

    def body(self, header: Header, sent: Body, most_bytes: int) -> Body:
        """The body that a request has written to the memory.

        Raises:
            InvalidInput: It is encoded, is not within the memory, or has more than `most_bytes`;
                or one was sent as well.
        """
        start, size = header["at"], body_bytes(header.get("in"))
        if "enc" in header or sent:
            raise InvalidInput("'at' is for inputs that are neither sent nor encoded")
        if size > most_bytes:
            raise InvalidInput(f"a body has at most {most_bytes} bytes, not {size}")
        number = self._number
        room = 0 if number is None else self._shared.pages[number].size
        is_within = type(start) is int and 0 <= start <= room - size
        if number is None or not is_within or start % ALIGNMENT:
            raise InvalidInput(
                f"'at' is a multiple of {ALIGNMENT} in the {room} bytes of memory that this "
                f"connection has been lent, with room for {size} bytes, not {start!r}"
            )
        return self._shared.body(number, start, size, self.returns.ended)

    def end(self) -> None:
        """The client is gone."""
        self.returns.close()
        if self._number is not None:
            self._shared.withdraw(self._number)
            self._number = None
