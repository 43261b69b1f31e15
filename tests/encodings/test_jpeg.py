"""Bytes that a stranger sends as a JPEG: refused, or decoded to the size that was expected."""

from __future__ import annotations

import contextlib
import io
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from scheduler.encodings import jpeg
from scheduler.encodings.codec import restoration
from scheduler.encodings.text import text_of
from scheduler.errors import InvalidInput
from tests.encodings.images import photograph
from workers.model import Encoding

PIXELS = photograph(40, 24)
GOOD = jpeg.encode(PIXELS, 90)
FRAME = jpeg.Frame(40, 24, 3)
TEXT = text_of(Encoding("jpeg", 90, "NHWC", (1 / 255,), (0.0,)))
SCAN = GOOD.index(b"\xff\xda")


def saved(**options: object) -> bytes:
    written = io.BytesIO()
    Image.fromarray(PIXELS).save(written, "JPEG", **options)
    return written.getvalue()


def resized(raw: bytes, height: int, width: int) -> bytes:
    """The same file, with another size in its frame."""
    at = raw.index(b"\xff\xc0") + 5
    return raw[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + raw[at + 4 :]


def restore(raw: bytes, shape: tuple[int | None, ...] = (40, 24, 3), most: int = 1 << 22):
    return restoration("x", TEXT, [raw], "float32", shape, most).run()


def test_what_is_written_is_read():
    assert jpeg.frame_of("x", GOOD) == FRAME
    found = jpeg.decode("x", GOOD, FRAME)
    assert abs(found.astype(int) - PIXELS).mean() < 4
    grey = jpeg.encode(PIXELS[:, :, :1], 90)
    assert jpeg.frame_of("x", grey) == (40, 24, 1)
    assert jpeg.decode("x", grey, jpeg.Frame(40, 24, 1)).shape == (40, 24, 1)


def cmyk() -> bytes:
    written = io.BytesIO()
    Image.fromarray(PIXELS).convert("CMYK").save(written, "JPEG")
    return written.getvalue()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not begin"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "does not begin"),
        (b"\xff\xd8", "no segment at byte 2"),
        (b"\xff\xd8\xff\xd9", "no segment"),
        (b"\xff\xd8" + bytes(9), "no segment at byte 2"),
        (b"\xff\xd8\xff\xe0\x00\x00" * 3, "no segment|marker"),
        (GOOD[:SCAN], "no segment"),
        (GOOD[: SCAN + 20], "does not end after one scan"),
        (GOOD[:-2], "does not end after one scan"),
        (GOOD + b"more", "does not end after one scan"),
        (GOOD[:-2] + GOOD[SCAN:], "does not end after one scan"),
        (saved(progressive=True), "marker 0xc2"),
        (saved(exif=b"Exif\x00\x00" + bytes(20)), "marker 0xe1"),
        (saved(icc_profile=bytes(200)), "marker 0xe2"),
        (cmyk(), "marker 0xee|4 channels"),
        (GOOD.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"), "not of 8 bits"),
        (GOOD.replace(b"\xff\xc0", b"\xff\xc9"), "marker 0xc9"),
        (resized(GOOD, 0, 24), "0x24 pixels"),
        (GOOD[:SCAN] + GOOD[GOOD.index(b"\xff\xc0") : SCAN] + GOOD[SCAN:], "marker 0xc0"),
        (GOOD[:SCAN] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + GOOD[SCAN + 14 :], "channels"),
    ],
)
def test_anything_else_is_refused_before_it_is_decoded(raw: bytes, why: str):
    with pytest.raises(InvalidInput, match=why):
        jpeg.frame_of("x", raw)


def test_an_image_of_another_size_is_refused_before_it_is_decoded():
    with pytest.raises(InvalidInput, match=r"shape \[40, 24, 3\], the image \[65500, 65500, 3\]"):
        restore(resized(GOOD, 65500, 65500))


def test_a_bomb_for_a_model_of_free_size_takes_no_memory():
    bomb = resized(GOOD, 65500, 65500)
    tracemalloc.start()
    started_s = time.monotonic()
    try:
        with pytest.raises(InvalidInput, match="would have 51483000000 bytes, at most 4194304"):
            restore(bomb, (None, None, 3))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
    assert time.monotonic() - started_s < 5


def test_a_bomb_within_the_limit_is_decoded_once_and_no_further():
    """A frame without enough data is filled up by the decoder, or refused; it does not hang."""
    started_s = time.monotonic()
    with contextlib.suppress(InvalidInput):
        found = restore(resized(GOOD, 512, 512), (None, None, 3))
        assert found.shape == (512, 512, 3)
    assert time.monotonic() - started_s < 5


def test_images_of_a_batch_are_of_one_size():
    other = jpeg.encode(photograph(40, 32), 90)
    with pytest.raises(InvalidInput, match="differ in size"):
        restoration("x", TEXT, [GOOD, other], "float32", (None, None, 3), 1 << 22, batch=True)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8))
@example([(SCAN + 1, 0xC4)])
def test_a_file_with_wrong_bytes_is_refused_or_decoded_to_the_size_it_should_have(
    changes: list[tuple[int, int]],
):
    raw = bytearray(GOOD)
    for at, byte in changes:
        raw[at] = byte
    try:
        found = restore(bytes(raw))
    except InvalidInput:
        return
    assert found.shape == (40, 24, 3)
    assert np.isfinite(found).all()


@settings(deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: GOOD[:SCAN] + tail))
def test_any_bytes_are_refused_or_decoded(raw: bytes):
    with contextlib.suppress(InvalidInput):
        assert restore(raw).shape == (40, 24, 3)
