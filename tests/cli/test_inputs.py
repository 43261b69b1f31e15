from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scheduler.cli.inputs import (
    Source,
    conform,
    from_picture,
    load_inputs,
    parse_source,
)
from scheduler.cli.streams import WrongUsage


def spec(*shape: int | None, dtype: str = "float32") -> dict[str, Any]:
    return {"name": "image", "dtype": dtype, "shape": list(shape)}


class TestPictures:
    @pytest.fixture
    def picture(self):
        """Red, green, blue and white over black."""
        picture = Image.new("RGB", (4, 2))
        for x, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))):
            picture.putpixel((x, 0), colour)
        return picture

    def test_channels_first(self, picture):
        found = from_picture(picture, spec(3, None, None))
        assert found.array.dtype == np.float32
        assert found.array.shape == (3, 2, 4)
        assert found.array[:, 0].tolist() == [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]]
        assert "HWC -> CHW" in found.steps

    def test_channels_last(self, picture):
        found = from_picture(picture, spec(2, 4, 3, dtype="uint8"))
        assert found.array.dtype == np.uint8
        assert found.array[0, 1].tolist() == [0, 255, 0]

    def test_without_channels(self, picture):
        found = from_picture(picture, spec(2, 4))
        assert found.array.shape == (2, 4)
        assert found.array[0, 3] == 1
        assert 0 < found.array[0, 0] < found.array[0, 1] < 1

    def test_resized(self, picture):
        found = from_picture(picture, spec(3, 224, 200))
        assert found.array.shape == (3, 224, 200)
        assert "resized to 200x224" in found.steps

    def test_levels_may_be_turned_round(self, picture):
        found = from_picture(picture, spec(1, 2, 4), (16, 0))
        assert found.array[0, 0, 3] == 0
        assert found.array[0, 1].tolist() == [16] * 4

    @pytest.mark.parametrize(
        ("name", "data", "told"),
        [
            ("x.ppm", b"P6 8x 8 255\n", "not a picture, or a damaged one"),
            ("x.png", b"\x89PNG\r\n\x1a\n\0\0\0\4IHDR", "not a picture, or a damaged one"),
            ("x.ppm", b"P6 99999 99999 255\n", "Image size (9999800001 pixels) exceeds limit"),
        ],
    )
    def test_a_damaged_picture_is_told_whatever_pillow_raises(self, tmp_path, name, data, told):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(WrongUsage, match=re.escape(f"{name} can't be read: {told}")):
            load_inputs([str(tmp_path / name)], [spec(3, 8, 8)], None)

    def test_levels_beyond_the_range_of_an_input_are_refused(self, picture):
        with pytest.raises(WrongUsage, match="is uint8, where there is no room for 300"):
            from_picture(picture, spec(2, 4, dtype="uint8"), (0, 300))

    def test_an_input_that_is_no_picture(self, picture):
        with pytest.raises(WrongUsage, match=r"float32 \[10\], which is no picture's shape"):
            from_picture(picture, spec(10))


_SIZE, _HUGE = b"(1000,), }         ", b"(1000000000000,), }"
_METHOD_9 = b"-\0\0\0\x09\0"
"""The head of a part of a ZIP file, with a compression that Python lacks."""


class TestArrays:
    @pytest.mark.parametrize(
        ("text", "source"),
        [
            ("x.npy", Source(None, Path("x.npy"))),
            ("image=x.npy", Source("image", Path("x.npy"))),
            ("image=x.npz:scans[7]", Source("image", Path("x.npz"), "scans", 7)),
            ("x.npz:scans", Source(None, Path("x.npz"), "scans")),
            ("x.npy[-1]", Source(None, Path("x.npy"), None, -1)),
            ("./a=b/x.png", Source(None, Path("a=b/x.png"))),
            (f"image={'n' * 300}", Source("image", Path("n" * 300))),  # which can't be looked for
        ],
    )
    def test_what_one_input_names(self, text, source):
        assert parse_source(text) == source

    def test_the_name_of_an_input_may_have_a_slash(self, tmp_path):
        inputs = [{**spec(3), "name": "model/left:0"}, {**spec(3), "name": "right"}]
        file = tmp_path / "x.npy"
        np.save(file, np.arange(3, dtype=np.float32))
        found = load_inputs([f"model/left:0={file}", f"right={file}"], inputs, None)
        assert found["model/left:0"].array.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        ("shape", "wanted", "result"),
        [
            ((8, 8), (1, 8, 8), (1, 8, 8)),
            ((1, 1, 8, 8), (1, 8, 8), (1, 8, 8)),
            ((5,), (None,), (5,)),
            ((8, 8), (None, 8, 8), (1, 8, 8)),
            ((), (1,), (1,)),
        ],
    )
    def test_dimensions_of_one_come_and_go(self, shape, wanted, result):
        assert conform(np.ones(shape, np.float32), spec(*wanted)).array.shape == result

    @pytest.mark.parametrize("shape", [(3, 8, 8), (8, 7), (64,), (1,)])
    def test_nothing_else_is_reshaped(self, shape):
        with pytest.raises(WrongUsage, match=r"is float32 \[1, 8, 8\], not \["):
            conform(np.ones(shape, np.float32), spec(1, 8, 8))

    def test_many_items_are_one_too_many(self):
        with pytest.raises(WrongUsage, match=r"choose one of its 3 items, as in PATH\[0\]"):
            conform(np.ones((3, 8, 8), np.float32), spec(1, 8, 8))

    @pytest.mark.parametrize(
        ("held", "number", "dtype"),
        [("uint16", 300, "uint8"), ("int64", 40_000, "int16"), ("float64", 1e300, "float32")],
    )
    def test_a_number_that_has_no_room_is_refused(self, held, number, dtype):
        with pytest.raises(WrongUsage, match=f"is {dtype}, where there is no room for") as refused:
            conform(np.array([1, number], held), spec(2, dtype=dtype))
        assert f"{number:g}" in str(refused.value)

    def test_a_single_number_fits_an_input_without_dimensions(self):
        assert conform(np.array(4, np.int64), spec(dtype="int16")).array.shape == ()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("objects.npz", "or holds Python objects"),
            ("objects.npy", "or holds Python objects"),
            ("damaged.npz", "it is cut short, damaged"),
            ("cut.npy", "it is cut short, damaged"),
            ("header.npy", "it is cut short, damaged"),
            ("method.npz", "it is cut short, damaged"),
            ("huge.npy", "huge.npy can't be read: "),  # for want of memory, or of what it promises
            ("foreign.npz", "foreign.npz: image is no array of NumPy"),
            ("foreign.npz:image", "foreign.npz: image is no array of NumPy"),
            ("empty.npz", "empty.npz has no array in it"),
        ],
    )
    def test_files_that_hold_no_numbers(self, tmp_path, words, said):
        objects = np.array([None, "x"], object)
        np.savez(tmp_path / "objects.npz", image=objects)
        np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
        np.savez(tmp_path / "empty.npz")
        np.savez(tmp_path / "whole.npz", image=np.zeros(1000))
        damaged = bytearray((tmp_path / "whole.npz").read_bytes())
        damaged[1000] ^= 255
        (tmp_path / "damaged.npz").write_bytes(damaged)
        np.save(tmp_path / "cut.npy", np.zeros(1000))
        os.truncate(tmp_path / "cut.npy", 1000)
        header = (tmp_path / "cut.npy").read_bytes()
        (tmp_path / "header.npy").write_bytes(header.replace(b"}", b"{"))
        (tmp_path / "huge.npy").write_bytes(header.replace(b"8'", b"4'").replace(_SIZE, _HUGE))
        method = (tmp_path / "whole.npz").read_bytes().replace(b"-\0\0\0\0\0", _METHOD_9)
        (tmp_path / "method.npz").write_bytes(method)
        with zipfile.ZipFile(tmp_path / "foreign.npz", "w") as archive:
            archive.writestr("image.npy", "no array")
        with pytest.raises(WrongUsage, match=re.escape(said)):
            load_inputs([str(tmp_path / words)], [spec(1000)], None)

    def test_numbers_are_not_cut_off(self):
        with pytest.raises(WrongUsage, match="float64 would lose detail"):
            conform(np.ones(2), spec(2, dtype="uint8"))


def test_a_file_that_there_is_no_memory_for_is_told_as_that(tmp_path, monkeypatch):
    def load(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(WrongUsage, match=r"x\.npy can't be read: no memory is left"):
        load_inputs([str(tmp_path / "x.npy")], [spec(2)], None)
