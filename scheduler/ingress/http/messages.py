"""The requests and responses of the HTTP door, apart from sockets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import orjson

from scheduler.errors import InvalidInput
from scheduler.ingress.oip.outcomes import Refusal
from scheduler.tenants import Tenant

JSON = "application/json"
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}
_LINES = {
    code: f"HTTP/1.1 {code} {phrase}\r\nserver: laxity\r\ndate: ".encode()
    for code, phrase in _PHRASES.items()
}


@dataclass(slots=True)
class Request:
    """A complete request.

    Attributes:
        method: The method in upper case; GET if it was HEAD.
        path: The path without the query, still percent-encoded.
        headers: Headers by name in lower case.
        body: The body as sent, perhaps compressed.
        tenant: Who asks.
        keep_alive: Whether the connection stays open.
        is_head: Whether to send the answer without its body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: memoryview
    tenant: Tenant
    keep_alive: bool
    is_head: bool = False


@dataclass(slots=True)
class Response:
    """An answer.

    Attributes:
        status: The HTTP status.
        body: The parts of the body.
        content_type: The type of the body.
        headers: Further headers.
    """

    status: int
    body: Sequence[Any] = ()
    content_type: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Size of the body in bytes."""
        return sum(map(len, self.body))


class _Clock:
    """The Date header, formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._date = b""

    def date(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        return self._date


_clock = _Clock()


def json_object(text: memoryview | bytes) -> dict[str, Any]:
    """Parses a body as a JSON object.

    Raises:
        InvalidInput: The body is not a JSON object.
    """
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidInput("the body should be a JSON object")
    return said


def as_json(value: Any, status: int = 200) -> Response:
    """Builds a JSON answer."""
    return Response(status, (orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY),))


def as_refusal(refusal: Refusal) -> Response:
    """Builds the answer for an error, as JSON."""
    headers = []
    if refusal.retry_after_s is not None:
        headers.append(("retry-after", str(refusal.retry_after_s)))
    if refusal.http == 405:
        headers.append(("allow", str(refusal.detail.get("allow", ""))))
    if refusal.http == 401:
        headers.append(("www-authenticate", "Bearer"))
    body = orjson.dumps(refusal.body, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(refusal.http, (body,), headers=headers)


def written(response: Response, keep_alive: bool, is_head: bool = False) -> list[Any]:
    """The buffers of an answer, ready for `writelines`."""
    size = response.size
    head = [
        _LINES[response.status],
        _clock.date(),
        f"\r\ncontent-type: {response.content_type}\r\ncontent-length: {size}\r\n".encode(),
    ]
    head += [
        f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in response.headers
    ]
    head.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    if is_head or not size:
        return [b"".join(head)]
    if size <= 16384:
        return [b"".join((*head, *response.body))]
    return [b"".join(head), *response.body]
