"""Content codings gzip and deflate: bounded decompression, and compression on request."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from scheduler.errors import InvalidInput
from scheduler.ingress.oip.outcomes import TooLarge

_AUTOMATIC = 32 + zlib.MAX_WBITS
"""zlib's mode that accepts both gzip and zlib streams."""
_RAW = -zlib.MAX_WBITS
_PIECE_IN_BYTES, _PIECE_OUT_BYTES = 64 * 1024, 1024 * 1024
_WORTH_BYTES = 1024
_LEVEL = 1
_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$")


def decoded(body: memoryview, coding: str, limit: int) -> memoryview:
    """Removes the content coding of a body.

    Args:
        body: The body as received.
        coding: The Content-Encoding header.
        limit: The largest decompressed size.

    Raises:
        InvalidInput: The coding is not known, or the body does not follow it.
        TooLarge: The decompressed body would exceed the limit.
    """
    for name in reversed([name.strip().lower() for name in coding.split(",")]):
        if name in ("gzip", "x-gzip", "deflate"):
            body = _inflated(body, name, limit)
        elif name not in ("", "identity"):
            raise InvalidInput(f"Content-Encoding {name!r} is not known; gzip and deflate are")
    return body


def accepted_coding(header: str, size: int) -> str | None:
    """The coding for an answer of that size, by its Accept-Encoding header; None for none."""
    if size < _WORTH_BYTES or not header:
        return None
    offered = {
        name.split(";")[0].strip().lower()
        for name in header.split(",")
        if not _REFUSED.search(name)
    }
    return next((name for name in ("gzip", "deflate") if name in offered), None)


def encoded(parts: list[Any], coding: str) -> bytes:
    """Compresses a body in a coding that `accepted_coding` gave."""
    data = b"".join(parts)
    return gzip.compress(data, _LEVEL) if coding == "gzip" else zlib.compress(data, _LEVEL)


def _inflated(body: memoryview, name: str, limit: int) -> memoryview:
    # HTTP's deflate is a zlib stream, but some clients send raw deflate: RFC 9110, 8.4.1.2.
    raw = name == "deflate" and bool(body) and (body[0] & 0x0F) != 8
    inflater = zlib.decompressobj(_RAW if raw else _AUTOMATIC)
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in _pieces(inflater, body):
            size += len(piece)
            if size > limit:
                raise TooLarge(f"the decompressed body has more than {limit} bytes")
            pieces.append(piece)
    except zlib.error as error:
        raise InvalidInput(f"the body is not {name}: {error}") from None
    if not inflater.eof:
        raise InvalidInput(f"the {name} body ends too early")
    return _joined(pieces, size)


def _pieces(inflater: Any, body: memoryview) -> Iterator[bytes]:
    """Decompresses a body in pieces, because zlib keeps the GIL while it joins a long result.

    Raises:
        InvalidInput: The body goes on after the end of the compressed data.
    """
    for start in range(0, len(body), _PIECE_IN_BYTES):
        rest: Any = body[start : start + _PIECE_IN_BYTES]
        full = True
        while (full or rest) and not inflater.eof:
            piece = inflater.decompress(rest, _PIECE_OUT_BYTES)
            rest, full = inflater.unconsumed_tail, len(piece) == _PIECE_OUT_BYTES
            yield piece
        if inflater.eof and (inflater.unused_data or start + _PIECE_IN_BYTES < len(body)):
            raise InvalidInput("there is more after the end of the compressed body")


def _joined(pieces: list[bytes], size: int) -> memoryview:
    if len(pieces) == 1:
        return memoryview(pieces[0])
    whole = np.empty(size, np.uint8)
    end = 0
    for piece in pieces:  # NumPy releases the GIL while it copies
        start, end = end, end + len(piece)
        whole[start:end] = np.frombuffer(piece, np.uint8)
    return whole.data
