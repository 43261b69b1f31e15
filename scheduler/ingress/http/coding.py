"""Content codings: gzip and deflate, in with a bound, out where the client asks for it."""

from __future__ import annotations

import gzip
import re
import zlib
from typing import Any

from scheduler.errors import InvalidInput
from scheduler.ingress.oip.outcomes import TooLarge

_AUTOMATIC = 32 + zlib.MAX_WBITS
"""zlib's mode that takes gzip and zlib streams alike."""
_RAW = -zlib.MAX_WBITS
_WORTH_BYTES = 1024
_LEVEL = 1
_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$")


def decoded(body: memoryview, coding: str, limit: int) -> memoryview:
    """A body without its content coding.

    Args:
        body: As it came.
        coding: The Content-Encoding header.
        limit: How large it may become.

    Raises:
        InvalidInput: The coding is not known, or the body does not follow it.
        TooLarge: It would become larger.
    """
    for name in reversed([name.strip().lower() for name in coding.split(",")]):
        if name in ("gzip", "x-gzip", "deflate"):
            body = _inflated(body, name, limit)
        elif name not in ("", "identity"):
            raise InvalidInput(f"Content-Encoding {name!r} is not known; gzip and deflate are")
    return body


def accepted_coding(header: str, size: int) -> str | None:
    """The coding that an answer of that size should have; None for none."""
    if size < _WORTH_BYTES or not header:
        return None
    offered = {
        name.split(";")[0].strip().lower()
        for name in header.split(",")
        if not _REFUSED.search(name)
    }
    return next((name for name in ("gzip", "deflate") if name in offered), None)


def encoded(parts: list[Any], coding: str) -> bytes:
    """A body in a coding that `accepted_coding` gave."""
    data = b"".join(parts)
    return gzip.compress(data, _LEVEL) if coding == "gzip" else zlib.compress(data, _LEVEL)


def _inflated(body: memoryview, name: str, limit: int) -> memoryview:
    # HTTP's deflate is a zlib stream, but clients send raw deflate as well: RFC 9110, 8.4.1.2.
    raw = name == "deflate" and bool(body) and (body[0] & 0x0F) != 8
    inflater = zlib.decompressobj(_RAW if raw else _AUTOMATIC)
    try:
        data = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidInput(f"the body is not {name}: {error}") from None
    if len(data) > limit:
        raise TooLarge(f"the body becomes more than {limit} bytes when it is decompressed")
    if not inflater.eof:
        raise InvalidInput(f"the {name} body ends too early")
    if inflater.unused_data:
        raise InvalidInput(f"there is more after the end of the {name} body")
    return memoryview(data)
