"""JPEG images: encoding, and strictly limited decoding.

Bytes from a network reach the decoder only if they have the form that `encode` writes: one baseline
frame of one scan, without metadata, of the size that the model takes. This excludes what has made
decoders slow or incorrect: progressive files with many scans, arithmetic coding, profiles,
thumbnails, and images that are small as files and huge in memory.
"""

from __future__ import annotations

import importlib.util
import io
import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import InvalidInput

CHANNELS = {1: "L", 3: "RGB"}
"""Pillow's modes, by the number of channels."""

MOST_SIDE = 65_500
"""The longest side of an image, in pixels; libjpeg accepts no longer one."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _SCAN = 0xC0, 0xDA
_TABLES = frozenset((0xC4, 0xDB, 0xDD, 0xE0, 0xFE))
"""Huffman and quantisation tables, restart interval, JFIF's header, comment."""

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""What ends a scan: any marker but a stuffed 0xff or a restart."""


class Frame(NamedTuple):
    """The size of an image."""

    height: int
    width: int
    channels: int


def is_available() -> bool:
    """Whether the library that reads and writes JPEG is installed."""
    return importlib.util.find_spec("PIL") is not None


def load() -> None:
    """Loads the library, which takes a while the first time."""
    from PIL import Image

    Image.preinit()


def encode(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """Encodes an image of shape (height, width, channels) as JPEG, colours at full resolution."""
    from PIL import Image

    plane = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    written = io.BytesIO()
    Image.fromarray(plane).save(written, "JPEG", quality=quality, subsampling=0)
    return written.getvalue()


def frame_of(name: str, raw: bytes) -> Frame:
    """The size of an image, read without decoding it.

    Raises:
        InvalidInput: It is not a JPEG of the form that `encode` writes.
    """
    frame: Frame | None = None
    at = len(_START)
    if not raw.startswith(_START):
        raise _refused(name, "it does not begin like one")
    while True:
        if at + 4 > len(raw) or raw[at] != 0xFF:
            raise _refused(name, f"there is no segment at byte {at}")
        marker, size = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4], "big")
        segment = raw[at + 4 : at + 2 + size]
        at += 2 + size
        if marker == _BASELINE and frame is None:
            frame = _frame(name, segment)
        elif marker == _SCAN and frame is not None:
            break
        elif marker not in _TABLES:
            raise _refused(name, f"marker 0x{marker:02x} is not one of a baseline frame")
    if segment[:1] != bytes([frame.channels]):
        raise _refused(name, "a scan does not hold all channels")
    end = _MARKER.search(raw, at)
    if end is None or end.group() != _END or end.end() != len(raw):
        raise _refused(name, "it does not end after one scan")
    return frame


def _frame(name: str, segment: bytes) -> Frame:
    if len(segment) < 6 or segment[0] != 8:
        raise _refused(name, "its samples are not of 8 bits")
    height, width = (int.from_bytes(segment[i : i + 2], "big") for i in (1, 3))
    if not height or not width or segment[5] not in CHANNELS:
        raise _refused(name, f"it has {height}x{width} pixels of {segment[5]} channels")
    return Frame(height, width, segment[5])


def decode(name: str, raw: bytes, frame: Frame) -> NDArray[np.uint8]:
    """The pixels of an image that `frame_of` has checked, of shape (height, width, channels).

    Raises:
        InvalidInput: It is corrupt.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw), formats=("JPEG",)) as image:
            if (image.height, image.width) != frame[:2] or image.mode != CHANNELS[frame.channels]:
                raise _refused(name, f"the decoder finds {image.size} pixels of {image.mode}")
            pixels: NDArray[Any] = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _refused(name, str(error)) from None
    return pixels.reshape(frame)


def _refused(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"input {name!r} should be a baseline JPEG of one scan without metadata: {why}"
    )
