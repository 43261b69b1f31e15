"""Large outputs that a client on this machine copies from where the worker has written them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.errors import ProtocolError
from scheduler.wire import Body, Header

MOST_BYTES = 64 << 20
"""The most that waits to be copied by one client. Further outputs are sent to it, so that one that
takes no answers is stopped by its full socket as ever."""

MESSAGES = frozenset(("mapped", "not_mapped", "free"))
"""What the client says of the memory."""

Place = tuple[int, int]
"""The number of the memory, and where a body begins in it."""


class Showing:
    """The outputs that the client of one connection has not copied yet.

    The client checks after it has copied one that the connection is still there, and discards the
    copy if it isn't. So nothing is overwritten while it may be copied if it is kept until the
    connection is closed.

    Args:
        shared: The memory that clients can read.
        tell: Sends the client a message; called on the event loop.

    Attributes:
        bytes: The size of these outputs.
    """

    def __init__(self, shared: SharedBodies, tell: Callable[[Header], None]) -> None:
        """Nothing is shown."""
        self._shared = shared
        self._mappings = shared.mappings(tell)
        self._shown: dict[Place, list[Body]] = {}
        self.bytes = 0

    def place(self, body: Body) -> Place | None:
        """Where the client copies a body from, which is kept until then; None to send it.

        If the client could read it but for not having mapped the memory, it is told to.
        """
        place = self._shared.place_of(body)
        if place is None or not self._mappings.has(place[0]) or self.bytes + len(body) > MOST_BYTES:
            return None
        self._shown.setdefault(place, []).append(body)
        self.bytes += len(body)
        return place

    def take(self, header: Header) -> None:
        """Handles one of `MESSAGES`.

        Raises:
            ProtocolError: It frees what was not shown to it.
        """
        if header["t"] == "mapped" and type(header.get("pages")) is int:
            self._mappings.mapped(header["pages"])
        elif header["t"] == "free":
            try:
                for number, start in header["at"]:
                    self._free((number, start))
            except (KeyError, TypeError, ValueError) as error:
                raise ProtocolError(f"it frees what it has not been shown: {error}") from None

    def _free(self, place: Place) -> None:
        bodies = self._shown[place]
        self.bytes -= len(bodies.pop())
        if not bodies:
            del self._shown[place]

    def end(self) -> None:
        """The connection is about to be closed."""
        asyncio.get_running_loop().call_soon(self._shown.clear)
