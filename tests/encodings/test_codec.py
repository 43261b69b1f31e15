"""What is made smaller comes back as the model takes it, and no further off than it may be."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from scheduler.encodings.codec import accepted, encoded, restoration
from scheduler.encodings.text import encoding_from, text_of
from scheduler.errors import InvalidInput
from tests.encodings.images import photograph
from workers.model import LAYOUTS, Encoding

FLOAT16 = Encoding("float16")
UNIT = Encoding("jpeg", 90, "NCHW", (1 / 255,), (0.0,))
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE, OFFSET = (1 / (255 * STD)).tolist(), (-MEAN / STD).tolist()
IMAGENET = Encoding("jpeg", 90, "NCHW", tuple(SCALE), tuple(OFFSET))
MOST = 1 << 20


def there_and_back(
    encoding: Encoding, array: NDArray[Any], shape: tuple[int | None, ...] | None = None
) -> NDArray[Any]:
    small = encoded(encoding, array)
    assert small is not None
    value = [small.tobytes()] if encoding.name == "jpeg" else small
    wanted = array.shape if shape is None else shape
    text = text_of(encoding)
    found = restoration("x", text, value, array.dtype.name, wanted, MOST).run()
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    return found


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]),
        arrays.array_shapes(max_side=8),
        elements=st.floats(-65504, 65504, width=32),
    )
)
def test_float16_is_off_by_half_a_step_of_eleven_bits_at_most(array: NDArray[np.float32]):
    back = there_and_back(FLOAT16, array)
    assert (abs(back - array) <= np.maximum(abs(array) * 2.0**-11, 2.0**-25)).all()


@pytest.mark.parametrize("value", [65520.0, -1e30, np.inf, np.nan])
def test_float16_is_not_for_what_it_can_not_hold(value: float):
    assert encoded(FLOAT16, np.array([1.0, value], np.float32)) is None


@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    channels=st.sampled_from([1, 3]),
    layout=st.sampled_from(LAYOUTS),
    low=st.floats(-2, 2),
    span=st.floats(0.5, 300) | st.floats(-300, -0.5),
)
def test_a_photograph_as_jpeg_is_off_by_a_few_of_its_steps(
    seed: int, height: int, width: int, channels: int, layout: str, low: float, span: float
):
    pixels = photograph(height, width, channels, seed)
    image = pixels.transpose(2, 0, 1) if layout == "NCHW" else pixels
    array = (image * np.float32(span / 255) + np.float32(low)).astype(np.float32)
    encoding = Encoding("jpeg", 95, layout, (span / 255,), (low,))
    steps = abs(there_and_back(encoding, array) - array) / abs(span / 255)
    assert steps.mean() < 4
    assert steps.max() < 40


def test_normalised_channels_come_back_each_with_its_own_scale():
    pixels = photograph(32, 48)
    array = ((pixels / 255 - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)
    back = there_and_back(IMAGENET, array)
    for channel in range(3):
        assert abs(back[channel] - array[channel]).mean() < 8 / 255 / STD[channel]


def test_bytes_stay_bytes_and_free_dimensions_take_any_size():
    pixels = photograph(24, 16)
    plain = Encoding("jpeg", 95, "NHWC", (1.0,), (0.0,))
    back = there_and_back(plain, pixels, (None, None, 3))
    assert abs(back.astype(int) - pixels.astype(int)).mean() < 4


def test_a_batch_of_images_has_a_dimension_for_them():
    images = [photograph(16, 16, 3, seed).transpose(2, 0, 1) / np.float32(255) for seed in (1, 2)]
    small = [encoded(UNIT, image.astype(np.float32)) for image in images]
    raws = [each.tobytes() for each in small if each is not None]
    work = restoration("x", text_of(UNIT), raws, "float32", (3, 16, 16), MOST, batch=True)
    assert work.size == 2 * 3 * 16 * 16 * 4
    back = work.run()
    assert back.shape == (2, 3, 16, 16)
    assert all(abs(found - image).mean() < 0.03 for found, image in zip(back, images, strict=True))


@pytest.mark.parametrize("value", [-0.01, 1.01, 200.0, np.nan, np.inf])
def test_jpeg_is_not_for_values_outside_of_the_range_that_was_declared(value: float):
    array = np.full((3, 8, 8), 0.5, np.float32)
    assert encoded(UNIT, array) is not None
    array[1, 2, 3] = value
    assert encoded(UNIT, array) is None


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8), (4, 8, 8), (0, 8, 8), (1, 3, 8, 8)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("encoding", [UNIT, IMAGENET])
def test_jpeg_is_not_for_what_is_no_image(
    encoding: Encoding, shape: tuple[int, ...], dtype: str
) -> None:
    assert encoded(encoding, np.zeros(shape, dtype)) is None


def test_three_scales_are_not_for_one_channel():
    assert encoded(IMAGENET, np.zeros((1, 8, 8), np.float32)) is None


def test_what_is_outside_by_less_than_half_a_step_is_rounding():
    array = np.array([-0.4, 255.4], np.float32).reshape(1, 1, 2) / 255
    assert encoded(UNIT, array) is not None


@given(
    layout=st.sampled_from(LAYOUTS),
    scale=st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3).map(tuple),
    offset=st.floats(-1e9, 1e9).map(lambda offset: (offset,)),
)
def test_an_encoding_survives_as_text(
    layout: str, scale: tuple[float, ...], offset: tuple[float, ...]
):
    encoding = Encoding("jpeg", 0, layout, scale, offset)
    assert encoding_from(text_of(encoding)) == encoding
    assert encoding_from(text_of(FLOAT16)) == FLOAT16


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "float8",
        "float16;x=1",
        "jpeg",
        "jpeg;layout=NCHW;scale=1",
        "jpeg;layout=CHW;scale=1;offset=0",
        "jpeg;layout=NCHW;scale=0;offset=0",
        "jpeg;layout=NCHW;scale=nan;offset=0",
        "jpeg;layout=NCHW;scale=1e300;offset=0",
        "jpeg;layout=NCHW;scale=1,1e-60,1;offset=0",
        "jpeg;layout=NCHW;scale=1;offset=-1e39",
        "jpeg;layout=NCHW;scale=1,1;offset=0",
        "jpeg;layout=NCHW;scale=1;offset=inf",
        "jpeg;layout=NCHW;scale=1;offset=0;more=1",
        "jpeg;layout=NCHW;scale=" + "1" * 600 + ";offset=0",
    ],
)
def test_other_texts_are_no_encodings(text: object):
    with pytest.raises(InvalidInput, match=r"encod|layout|scale"):
        encoding_from(text)


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="jpeg;layoutscf=,.0123456789NCHW", max_size=80))
def test_any_text_is_an_encoding_or_refused(text: str):
    with contextlib.suppress(InvalidInput):
        assert encoding_from(text).name in ("float16", "jpeg")


HALF = np.ones((3, 4), np.float16)


@pytest.mark.parametrize(
    ("text", "value", "dtype", "why"),
    [
        ("float16", HALF.astype(np.float32), "float32", "does not have that dtype"),
        ("float16", [b"x"], "float32", "does not have that dtype"),
        ("float16", HALF, "int32", "is int32"),
        (text_of(UNIT), HALF, "float32", "bytes of its images"),
        (text_of(UNIT), [], "float32", "bytes of its images"),
        (text_of(UNIT), [b"", b""], "float32", "bytes of its images"),
        (text_of(UNIT), [b""], "int64", "can't become that"),
        (text_of(UNIT), [b""], "uint8", "can't become that"),
    ],
)
def test_what_can_not_become_the_input_is_refused(text: str, value, dtype: str, why: str):
    with pytest.raises(InvalidInput, match=why):
        restoration("x", text, value, dtype, (3, 4), MOST)


def test_what_would_be_too_large_is_refused_before_it_is_made():
    with pytest.raises(InvalidInput, match="would have 48 bytes, at most 47"):
        restoration("x", "float16", HALF, "float32", (3, 4), 47)


def test_without_pillow_there_is_float16_alone(monkeypatch: pytest.MonkeyPatch):
    assert accepted() == ("float16", "jpeg")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert accepted() == ("float16",)
    with pytest.raises(InvalidInput, match=r"laxity\[image\]"):
        restoration("x", text_of(UNIT), [b"x"], "float32", (3, 4, 4), MOST)
