"""Tensors of text: what people have becomes bytes of one length, and comes back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import wire
from scheduler.core.signature import STRING, element_bytes, travels_as
from scheduler.errors import InvalidInput
from scheduler.texts import MOST_ELEMENTS, as_text, check_utf8, decoded, dtype_name, of_elements

texts = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: not t.endswith("\0"))


@given(st.lists(texts, max_size=6), st.sampled_from([object, "U", "S", "T"]))
def test_texts_of_any_array_travel_and_come_back(held: list[str], kind: Any) -> None:
    if kind == "T" and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        kind = "U"
    values: list[Any] = [text.encode() for text in held] if kind == "S" else held
    array = np.array(values, kind)

    specs, buffers = wire.pack_tensors({"t": array, "n": np.arange(3)})
    back = wire.unpack_tensors(specs, memoryview(b"".join(buffers)))

    longest = max((len(text.encode()) for text in held), default=1) or 1
    assert specs[0] == ["t", f"S{longest}", [len(held)]]
    assert [text.decode() for text in back["t"].tolist()] == held
    assert decoded(back["t"]).tolist() == held
    assert back["n"].tolist() == [0, 1, 2]
    check_utf8("t", back["t"])


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_a_shape_is_kept(shape: tuple[int, ...]) -> None:
    array = np.full(shape, "wort")
    specs, buffers = wire.pack_tensors({"t": array})
    back = wire.unpack_tensors(specs, memoryview(b"".join(buffers)))["t"]
    assert back.shape == shape
    assert decoded(back).tolist() == array.tolist()


def test_text_that_is_strided_or_without_length_travels() -> None:
    for array in (np.array([b"ab", b"xx", b"cd"])[::2], np.zeros(2, "S0")):
        specs, buffers = wire.pack_tensors({"t": array})
        back = wire.unpack_tensors(specs, memoryview(b"".join(buffers)))["t"]
        assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a", 1], object), "'t' is of objects and holds 1; accepted are str and bytes"),
        (np.array([b"a\0"], object), "ends with a zero"),
        (np.array(["a\ud800"]), "'t' holds invalid text"),
        (np.array(["a\ud800"], object), "'t' holds invalid text"),
        (np.array([1j]), "dtype complex128; accepted are bool.*, string"),
        (np.array(["2026-01-01"], "M8[D]"), "dtype datetime64"),
    ],
)
def test_what_is_no_text_is_refused(array: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wire.pack_tensors({"t": array})


def test_bytes_that_are_no_utf8_are_told_element_by_element() -> None:
    halves = "é".encode()
    with pytest.raises(InvalidInput, match="'t' holds a text that begins within a character"):
        check_utf8("t", np.array([halves[:1], halves[1:]]))
    with pytest.raises(InvalidInput, match="'t' holds bytes that are no UTF-8"):
        check_utf8("t", np.array([halves[:1], b"ab"]))


@given(st.lists(st.binary(max_size=4), max_size=5))
def test_utf8_is_what_decodes(raws: list[bytes]) -> None:
    array = np.array(raws, "S4")
    try:
        np.char.decode(array, "utf-8")
    except UnicodeDecodeError:
        with pytest.raises(InvalidInput, match="'t' holds"):
            check_utf8("t", array)
    else:
        check_utf8("t", array)


def test_one_long_text_among_many_short_ones_does_not_fill_the_memory() -> None:
    with pytest.raises(InvalidInput, match="take 1000000100000 bytes; send long ones separately"):
        of_elements("t", [b"x" * 10_000_001, *[b""] * 99_999], [100_000])
    assert of_elements("t", [b"x" * 1000, *[b""] * 999], [1000]).nbytes == 1_000_000


def test_what_travels_as_text() -> None:
    assert element_bytes("S12") == 12
    assert [element_bytes(name) for name in ("S", "S0", "S-1", "S1x", "S٣", "string")] == [None] * 6
    assert travels_as(STRING, "S3")
    assert travels_as("int8", "int8")
    assert not travels_as("int8", "S1")
    assert not travels_as(STRING, "float32")
    assert dtype_name(as_text("t", np.array(["a"]))) == STRING
    assert dtype_name(np.zeros(1)) == "float64"
    assert of_elements("t", [], (0,)).dtype == "S1"


def test_texts_are_few_enough_to_be_objects():
    check_utf8("t", np.zeros(MOST_ELEMENTS, "S1"))
    with pytest.raises(
        InvalidInput, match="'t' holds 1,048,577 texts; a tensor may hold 1,048,576"
    ):
        check_utf8("t", np.zeros(MOST_ELEMENTS + 1, "S1"))
