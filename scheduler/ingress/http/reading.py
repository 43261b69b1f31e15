"""Assembles requests from the callbacks of httptools' parser, within all limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from scheduler.errors import InvalidInput, LaxityError
from scheduler.ingress.http.messages import Request
from scheduler.ingress.oip.outcomes import HeadTooLarge, TooLarge
from scheduler.tenants import ANYONE, Tenant

if TYPE_CHECKING:
    from scheduler.ingress.http.connection import Connection
    from scheduler.ingress.http.door import Caller, HttpDoor

_IN_PLACE_BYTES = 64 * 1024
"""Bodies above this size are read directly into their own memory, past the parser."""

_MOST_HEADERS = 100
_EMPTY = memoryview(b"")


def declared_size(headers: Mapping[str, str]) -> int:
    """The size of the body that the headers declare; 0 if they declare none."""
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 19 else 0


class Incoming:
    """The request being received on one connection; httptools calls the `on_` methods.

    Attributes:
        caller: What the connection tells about its client.
        refusal: Why this request and all that follows can't be accepted.
        busy: Whether a part of a request has arrived.
        is_admitted: Whether its headers have arrived and passed all checks.
        declared: The size of its body by its Content-Length.
        begun: How many requests have begun.
    """

    def __init__(self, connection: Connection, door: HttpDoor) -> None:
        """Starts between requests."""
        self._connection = connection
        self._door = door
        self.caller: Caller | None = None
        self.refusal: LaxityError | None = None
        self.begun = 0
        self._reset()

    def _reset(self) -> None:
        self.busy = self.is_admitted = False
        self.declared = 0
        self._in_head = False
        self._head_bytes = 0
        self._fed = 0
        self._url = b""
        self._headers: dict[str, str] = {}
        self._headers_seen = 0
        self._tenant: Tenant = ANYONE
        self._method = "GET"
        self._keep_alive = True
        self._error: LaxityError | None = None
        self._parts = bytearray()  # a list of tiny chunks would take many times what is counted
        self._held = 0
        self._body: memoryview | None = None
        self._count = 0

    # -- httptools

    def on_message_begin(self) -> None:
        """Starts a request."""
        self.begun += 1
        if self.refusal is None:
            self._reset()
            self.busy = self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Takes a part of the request target."""
        self._url += url
        self._add_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header, or trailer."""
        self._add_head(len(name) + len(value) + 4)
        self._headers_seen += 1
        if self._headers_seen > _MOST_HEADERS:
            self.refusal = HeadTooLarge(f"more than {_MOST_HEADERS} headers")
        if self.refusal is not None or not self._in_head:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Admits or refuses the request before its body is read."""
        if self.refusal is not None:
            return
        self._in_head = False
        parser = self._connection.parser
        self._method = parser.get_method().decode("latin-1")
        self._keep_alive = parser.should_keep_alive() and not self._door.closing
        headers = self._headers
        self.declared = declared_size(headers)
        try:
            self._tenant = self._door.admit(self.caller, headers)
            self._door.seat(self._connection, self._tenant)
            self._check_size(self.declared)
            self.is_admitted = True
        except LaxityError as error:
            self._error = error
            waits = "expect" in headers
            if waits or self.declared > _IN_PLACE_BYTES or "transfer-encoding" in headers:
                self.refusal = error
            return
        if headers.get("expect", "").lower() == "100-continue":
            self._connection.go_on()
        if self.declared > _IN_PLACE_BYTES:
            self._body = np.empty(self.declared, np.uint8).data

    def on_body(self, chunk: bytes) -> None:
        """Takes a part of the body."""
        if self.refusal is not None or self._error is not None:
            return
        try:
            self._hold(len(chunk))
        except LaxityError as error:
            self.refusal = error
            return
        if self._body is not None:
            self._body[self._count : self._count + len(chunk)] = chunk
        else:
            self._parts += chunk
        self._count += len(chunk)

    def on_message_complete(self) -> None:
        """Passes the complete request on."""
        if self.refusal is not None:
            return
        request = self.as_request(self._keep_alive)
        error = self._error
        held, self._held = self._held, 0
        self._door.held.release(self._tenant, held - len(request.body))
        self._reset()
        if error is not None:
            self._connection.refuse(request, error)
        else:
            self._connection.take(request)

    # -- for the connection

    def as_request(self, keep_alive: bool) -> Request:
        """The request as far as it is known."""
        body = self._body
        if body is None:
            body = memoryview(self._parts) if self._parts else _EMPTY
        if self._error is not None or self.refusal is not None:
            body = _EMPTY
        method = "GET" if self._method == "HEAD" else self._method
        path = self._url.partition(b"?")[0].decode("latin-1")
        if path.startswith("http"):  # the absolute form, which proxies are sent
            path = "/" + path.partition("://")[2].partition("/")[2]
        return Request(
            method,
            path,
            self._headers,
            body,
            self._tenant,
            keep_alive,
            self._method == "HEAD",
        )

    @property
    def size(self) -> int:
        """The size of the body as far as it is known: declared, or received in chunks."""
        return max(self.declared, self._held)

    def unfilled(self) -> memoryview | None:
        """The unfilled part of a body that is read in place; None if there is no such body."""
        body = self._body
        if body is None or self.refusal is not None or self._count >= len(body):
            return None
        return body[self._count :]

    def filled(self, count: int) -> bool:
        """Counts bytes that were read in place; returns True at the end of the request."""
        try:
            self._hold(count)
        except LaxityError as error:
            self.refusal = error
            return False
        self._count += count
        if self._body is None or self._count < len(self._body):
            return False
        self.on_message_complete()
        return True

    def count_head(self, count: int, was_busy: bool, begun: int) -> None:
        """Bounds a header that never ends, which the parser does not report before its end.

        Args:
            count: How many bytes were parsed. They count only if all belong to this head: after
                other requests in the same read, nothing tells where it began.
            was_busy: Whether a part of a request had arrived before them.
            begun: How many requests had begun before them.
        """
        if self._in_head and self.begun - begun == (not was_busy):
            self._fed += count
            self._add_head(0, at_least=self._fed)

    def drop(self) -> None:
        """Drops the partial request."""
        self._door.held.release(self._tenant, self._held)
        refusal = self.refusal
        self._reset()
        self.refusal = refusal or InvalidInput("the connection is closing")

    # -- inside

    def _add_head(self, count: int, at_least: int = 0) -> None:
        self._head_bytes = max(self._head_bytes + count, at_least)
        limit = self._door.limits.head_bytes
        if self._head_bytes > limit and self.refusal is None:
            self.refusal = HeadTooLarge(f"request line and headers have more than {limit} bytes")

    def _check_size(self, size: int) -> None:
        limit = self._door.limits.body_bytes
        if size > limit:
            raise TooLarge(f"the body has {size} bytes, at most {limit} are taken")

    def _hold(self, count: int) -> None:
        self._check_size(self._held + count)
        self._door.held.hold(self._tenant, count)
        self._held += count
