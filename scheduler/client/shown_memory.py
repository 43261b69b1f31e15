"""Memory of a daemon on the same machine, from which large outputs are copied."""

from __future__ import annotations

from scheduler import wire
from scheduler.errors import ProtocolError
from scheduler.shared_pages import SharedPages, opened


class ShownMemory:
    """Outputs that are read where a worker has written them."""

    def __init__(self) -> None:
        """Nothing is mapped."""
        self._pages: dict[int, SharedPages] = {}

    def map(self, header: wire.Header) -> wire.Header:
        """Maps what a `map` message names; returns the answer."""
        try:
            number = header["pages"]
            self._pages[number] = opened(header, writable=False)
        except (OSError, KeyError, TypeError) as error:
            # It can't be seen from here, as in a container, so outputs are sent.
            return {"t": "not_mapped", "pages": header.get("pages"), "reason": str(error)}
        return {"t": "mapped", "pages": number}

    def forget(self, header: wire.Header) -> None:
        """Unmaps what a `forget` message names.

        Raises:
            ProtocolError: It names nothing.
        """
        try:
            self._pages.pop(header["pages"], None)
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"it forgets memory without a number: {error!r}") from None

    def copied(self, header: wire.Header) -> wire.Body:
        """A copy of the body of a result.

        Raises:
            ProtocolError: There is none.
        """
        try:
            number, start = header["at"]
            body = wire.allocate(header, wire.body_bytes(header["out"]))
            self._pages[number].read(start, body)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a result in memory that it does not show: {error!r}") from None
        return body
