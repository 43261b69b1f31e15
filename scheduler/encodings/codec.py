"""Encodes inputs into smaller forms, and restores them to what the model takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.signature import DTYPES, shape_text
from scheduler.encodings import jpeg
from scheduler.encodings.text import FLOAT16, JPEG, encoding_from
from scheduler.errors import InvalidInput
from workers.model import Encoding

Array = NDArray[Any]


def accepted() -> tuple[str, ...]:
    """The names of the encodings that can be encoded and decoded here."""
    return (FLOAT16, JPEG) if jpeg.is_available() else (FLOAT16,)


# -- encoding


def encoded(encoding: Encoding, array: Array) -> Array | None:
    """Encodes one item's input in a smaller form: float16, or a vector of bytes.

    Returns:
        None if the form can't represent it: a value beyond float16's 65504, outside the range that
        the model's owner gave, or not a number; a shape that is no image's.
    """
    if encoding.name == FLOAT16:
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        return half if np.isfinite(half).all() else None
    pixels = _pixels(encoding, array)
    if pixels is None or not pixels.size or max(pixels.shape) > jpeg.MOST_SIDE:
        return None
    return np.frombuffer(jpeg.encode(pixels, encoding.quality), np.uint8)


def _pixels(encoding: Encoding, array: Array) -> NDArray[np.uint8] | None:
    """Pixels, as (height, width, channels); None if a value is over half a step out of range."""
    if array.ndim != 3:
        return None
    image = array.transpose(1, 2, 0) if encoding.layout == "NCHW" else array
    if not _has_channels(encoding, image.shape[2]):
        return None
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    steps = image.astype(np.float32)
    steps -= np.array(encoding.offset, np.float32)
    steps /= np.array(encoding.scale, np.float32)
    if not steps.size or not (np.min(steps) >= -0.5 and np.max(steps) <= 255.5):
        return None
    return np.rint(steps).clip(0, 255).astype(np.uint8)


def _has_channels(encoding: Encoding, channels: int) -> bool:
    """Whether an image may have that many channels, with one scale and offset each or for all."""
    each = {len(encoding.scale), len(encoding.offset)}
    return channels in jpeg.CHANNELS and each <= {1, channels}


# -- decoding


@dataclass(frozen=True, slots=True)
class Restoration:
    """The work to restore an input; `restoration` makes one.

    Attributes:
        name: The input's name.
        encoding: How it was encoded.
        dtype: The dtype that the model takes.
        shape: The shape of the result.
        value: What was received: one array, or the images of a batch.
        frame: The size of each image.
    """

    name: str
    encoding: Encoding
    dtype: str
    shape: tuple[int, ...]
    value: Array | Sequence[bytes]
    frame: jpeg.Frame | None = None

    @property
    def size(self) -> int:
        """The size of the result in memory, in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype]

    def run(self) -> Array:
        """Restores the input to what the model takes; slow, and may run in any thread.

        Raises:
            InvalidInput: An image is corrupt.
        """
        if self.frame is None:
            assert isinstance(self.value, np.ndarray)
            return self.value.astype(self.dtype)
        restored = np.empty(self.shape, self.dtype)
        items = restored.reshape(-1, *self._item_shape)
        for item, raw in zip(items, self.value, strict=True):
            item[...] = self._item(jpeg.decode(self.name, raw, self.frame))
        return restored

    @property
    def _item_shape(self) -> tuple[int, ...]:
        return self.shape[-3:]

    def _item(self, pixels: NDArray[np.uint8]) -> Array:
        image: Array = pixels
        if self.dtype != "uint8":
            scaled = pixels.astype(np.float32)
            scaled *= np.array(self.encoding.scale, np.float32)
            scaled += np.array(self.encoding.offset, np.float32)
            image = scaled
        return image.transpose(2, 0, 1) if self.encoding.layout == "NCHW" else image


def restoration(
    name: str,
    text: object,
    value: Array | Sequence[bytes],
    dtype: str,
    shape: tuple[int | None, ...],
    most_bytes: int,
    batch: bool = False,
) -> Restoration:
    """Prepares to restore an input to what the model takes. Nothing is decoded yet.

    Args:
        name: The input's name.
        text: The encoding, as messages carry it.
        value: What was received: a float16 array, or JPEG images.
        dtype: The dtype that the model takes.
        shape: The shape of one item; None is a free dimension.
        most_bytes: The most that the result may take.
        batch: Whether the result for images has a leading batch dimension.

    Raises:
        InvalidInput: It can't become what the model takes.
    """
    encoding = encoding_from(text)
    if encoding.name == FLOAT16:
        found = _half(name, encoding, value, dtype)
    else:
        found = _images(name, encoding, value, dtype, shape, batch)
    if found.size > most_bytes:
        raise InvalidInput(f"input {name!r} would have {found.size} bytes, at most {most_bytes}")
    return found


def _half(name: str, encoding: Encoding, value: Array | Sequence[bytes], dtype: str) -> Restoration:
    if not isinstance(value, np.ndarray) or value.dtype != np.float16:
        raise InvalidInput(f"input {name!r} is encoded as {FLOAT16} but does not have that dtype")
    if dtype not in ("float32", "float64"):
        raise InvalidInput(f"input {name!r} is {dtype}: {FLOAT16} is for float32 and float64")
    return Restoration(name, encoding, dtype, value.shape, value)


def _images(
    name: str,
    encoding: Encoding,
    value: Array | Sequence[bytes],
    dtype: str,
    shape: tuple[int | None, ...],
    batch: bool,
) -> Restoration:
    if not jpeg.is_available():
        raise InvalidInput(f"input {name!r} is a JPEG: that needs Pillow here (laxity[image])")
    if isinstance(value, np.ndarray) or not value or not (batch or len(value) == 1):
        raise InvalidInput(f"input {name!r} should come as the bytes of its images")
    plain = encoding.scale == (1.0,) and encoding.offset == (0.0,)
    if not (dtype.startswith("float") or (dtype == "uint8" and plain)):
        raise InvalidInput(f"input {name!r} is {dtype}: these pixels can't become that")
    frame, *others = {jpeg.frame_of(name, raw) for raw in value}
    height, width, channels = frame
    if others or not _has_channels(encoding, channels):
        raise InvalidInput(f"the images of {name!r} differ in size, or from their encoding")
    found = (channels, height, width) if encoding.layout == "NCHW" else frame
    fits = len(shape) == 3 and all(
        want in (None, have) for have, want in zip(found, shape, strict=True)
    )
    if not fits:
        raise InvalidInput(f"input {name!r} has shape {shape_text(shape)}, the image {list(found)}")
    whole = (len(value), *found) if batch else tuple(found)
    return Restoration(name, encoding, dtype, whole, value, frame)
