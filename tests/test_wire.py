from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scheduler import wire
from scheduler.core.signature import DTYPES
from scheduler.errors import InvalidInput, ProtocolError

LIMITS = wire.FrameLimits()
SMALL = wire.FrameLimits(header_bytes=1024, body_bytes=4096)
# On both sides of what is joined, of what is read at once, and of the reader's own buffer.
SIZES = [0, 1, 63, 1000, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 100_000, 300_000, 600_000]

Frames = list[tuple[wire.Header, "wire.Body | None"]]


def feed(
    data: bytes,
    chunks: list[int],
    limits: wire.FrameLimits = LIMITS,
    allocate: wire.Allocate = wire.allocate,
) -> Frames:
    return read(wire.FrameReader(limits, allocate), data, chunks)


def read(reader: wire.FrameReader, data: bytes, chunks: list[int]) -> Frames:
    """Reads `data` in pieces of the given sizes, over and over; larger ones when it is long."""
    frames: Frames = []
    at = turn = 0
    while at < len(data):
        buffer = reader.get_buffer()
        chunk = max(chunks[turn % len(chunks)], turn)
        count = min(len(buffer), chunk, len(data) - at)
        assert count > 0
        buffer[:count] = data[at : at + count]
        frames += reader.advance(count)
        at, turn = at + count, turn + 1
    return frames


def body_of(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def frame(header: Any, body: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(header)
    return wire.PREFIX.pack(len(packed), len(body)) + packed + body


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip
headers = st.dictionaries(st.text(max_size=5), values, max_size=5).map(lambda h: {**h, "t": "x"})
chunkings = st.lists(st.integers(1, 100_000), min_size=1, max_size=10)
arrays = hnp.arrays(
    st.sampled_from(list(DTYPES)).flatmap(lambda name: st.sampled_from(orders_of(name))),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


def orders_of(name: str) -> list[np.dtype[Any]]:
    return [np.dtype(name), np.dtype(name).newbyteorder(">")]


class TestFrames:
    @settings(deadline=None)
    @given(st.lists(st.tuples(headers, st.sampled_from(SIZES)), max_size=4), chunkings)
    def test_any_chunking_gives_the_same_frames(self, wanted, chunks):
        bodies = [body_of(size, seed) for seed, (_, size) in enumerate(wanted)]
        data = b"".join(
            bytes(part)
            for (header, _), body in zip(wanted, bodies, strict=True)
            for part in wire.encode(header, [body] if body else [])
        )
        frames = feed(data, chunks)
        assert [header for header, _ in frames] == [header for header, _ in wanted]
        assert [bytes(body or b"") for _, body in frames] == bodies

    @settings(deadline=None)
    @given(st.integers(1, 700_000), chunkings)
    def test_a_cut_stream_gives_only_whole_frames_and_the_rest_when_it_goes_on(self, cut, chunks):
        data = frame({"t": "a"}) + frame({"t": "b"}, bytes(600_000)) + frame({"t": "c"})
        reader = wire.FrameReader(LIMITS)
        frames = read(reader, data[:cut], chunks)
        ends = [len(frame({"t": "a"})), len(data) - len(frame({"t": "c"})), len(data)]
        assert len(frames) == sum(end <= cut for end in ends)
        frames += read(reader, data[cut:], chunks)
        assert [(header["t"], len(body or b"")) for header, body in frames] == [
            ("a", 0),
            ("b", 600_000),
            ("c", 0),
        ]

    @settings(deadline=None)
    @given(st.binary(max_size=4000), chunkings)
    def test_arbitrary_bytes_give_frames_or_a_protocol_error(self, data, chunks):
        allocated = []

        def allocate(header: wire.Header, size: int) -> memoryview:
            allocated.append(size)
            return wire.allocate(header, size)

        try:
            frames = feed(data, chunks, SMALL, allocate)
        except ProtocolError:
            pass
        else:
            assert all(isinstance(header["t"], str) for header, _ in frames)
        assert sum(allocated) <= len(data) + SMALL.body_bytes

    @settings(deadline=None)
    @given(st.binary(min_size=1, max_size=100), st.integers(0, 200))
    def test_an_arbitrary_header_gives_a_frame_or_a_protocol_error(self, packed, body_bytes):
        data = wire.PREFIX.pack(len(packed), body_bytes) + packed + bytes(body_bytes)
        try:
            ((header, body),) = feed(data, [7], SMALL)
        except ProtocolError:
            return
        assert isinstance(header["t"], str)
        assert len(body or b"") == body_bytes

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (struct.pack("<II", 0, 0), "1 to 1024 bytes, not 0"),
            (struct.pack("<II", 1025, 0), "1 to 1024 bytes, not 1025"),
            (struct.pack("<II", 2**32 - 1, 2**32 - 1), "1 to 1024 bytes, not 4294967295"),
            (struct.pack("<II", 1, 4097), "at most 4096 bytes, not 4097"),
            (frame([1]), "a msgpack map"),
            (frame({"t": 1}), "the message type under 't'"),
            (frame({1: 1}), "string keys"),
            (frame({"t": "x", "x": msgpack.ExtType(1, b"x")}), "one msgpack map"),
            (frame({"t": "x"})[:-1] + b"\xff", "one msgpack map"),
            (struct.pack("<II", 1, 0) + b"\xc1", "with string keys$"),
        ],
    )
    def test_what_can_not_be_followed_is_said(self, data, message):
        with pytest.raises(ProtocolError, match=message):
            feed(data, [3], SMALL)

    def test_sizes_are_refused_before_anything_else_is_read(self):
        with pytest.raises(ProtocolError):
            feed(struct.pack("<II", 10, 4097), [8], SMALL)

    @settings(deadline=None)
    @given(chunkings, st.sampled_from([40_000, 200_000, 600_000]))
    def test_a_body_that_nobody_wants_is_skipped(self, chunks, size):
        data = frame({"t": "a"}, bytes(size)) + frame({"t": "b"}, b"kept")
        frames = feed(data, chunks, LIMITS, lambda header, size: None)
        (first, none), (second, body) = frames
        assert (first["t"], none, second["t"], bytes(body or b"")) == ("a", None, "b", b"kept")

    def test_a_large_body_is_read_into_the_memory_it_was_given(self):
        memory = memoryview(bytearray(600_000))
        body = body_of(600_000, 1)
        ((_, got),) = feed(frame({"t": "a"}, body), [10_000], LIMITS, lambda *_: memory)
        assert got is memory
        assert bytes(memory) == body

    @pytest.mark.parametrize("size", [1000, 100_000, 1_000_000])
    def test_headers_up_to_the_limit_fit(self, size):
        header = {"t": "a", "pad": "x" * size}
        limits = wire.FrameLimits(header_bytes=size + 100)
        frames = feed(frame(header) * 3, [50_000], limits)
        assert frames == [(header, memoryview(b""))] * 3

    def test_what_was_given_out_does_not_change_later(self):
        data = b"".join(frame({"t": "a"}, body_of(1000, n)) for n in range(2000))
        frames = feed(data, [70_000])
        assert [bytes(body or b"") for _, body in frames] == [body_of(1000, n) for n in range(2000)]


class TestTensors:
    @settings(deadline=None)
    @given(st.dictionaries(st.text(max_size=8), arrays, max_size=4), st.data())
    def test_round_trip(self, tensors, data):
        tensors = {name: data.draw(views_of(array)) for name, array in tensors.items()}
        specs, buffers = wire.pack_tensors(tensors)
        ((header, body),) = feed(
            b"".join(map(bytes, wire.encode({"t": "x", "in": specs}, buffers))), [1000]
        )
        received = wire.unpack_tensors(header["in"], body)
        assert list(received) == list(tensors)
        for name, tensor in tensors.items():
            assert received[name].dtype == tensor.dtype.newbyteorder("=")
            assert received[name].shape == tensor.shape
            np.testing.assert_array_equal(received[name], tensor)

    def test_every_tensor_starts_aligned(self):
        tensors = {name: np.ones(3, dtype) for name, dtype in zip("abc", DTYPES, strict=False)}
        specs, buffers = wire.pack_tensors(tensors)
        received = wire.unpack_tensors(specs, memoryview(b"".join(buffers)))
        starts = [array.__array_interface__["data"][0] for array in received.values()]
        assert [start - starts[0] for start in starts] == [0, 64, 128]

    def test_contiguous_arrays_are_not_copied(self):
        x = np.zeros((300, 300), np.float32)
        _, (buffer,) = wire.pack_tensors({"x": x})
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), x)
        *_, part = wire.encode({"t": "x"}, [buffer])
        assert part is buffer

    @pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "V4"])
    def test_dtypes_that_can_not_travel_are_refused(self, dtype):
        with pytest.raises(InvalidInput, match=r"tensor 'x' has dtype .*; accepted are bool, int8"):
            wire.pack_tensors({"x": np.zeros(2, dtype)})

    @settings(deadline=None)
    @given(values, st.binary(max_size=200))
    def test_arbitrary_lists_give_tensors_or_invalid_input(self, specs, body):
        with contextlib.suppress(InvalidInput):
            wire.unpack_tensors(specs, memoryview(body))

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b"]) | values,
                st.sampled_from([*DTYPES, "object"]) | values,
                st.lists(st.integers(-1, 4) | st.sampled_from([2**32, 2**40, True]), max_size=20)
                | values,
            ).map(list),
            max_size=3,
        ),
        st.binary(max_size=200),
    )
    def test_nearly_right_lists_give_tensors_or_invalid_input(self, specs, body):
        try:
            tensors = wire.unpack_tensors(specs, memoryview(body))
        except InvalidInput:
            return
        assert [[n, x.dtype.name, list(x.shape)] for n, x in tensors.items()] == specs

    @pytest.mark.parametrize(
        ("specs", "body", "message"),
        [
            ({}, 0, "a list of at most 256"),
            ([["x", "int8", [1]]] * 257, 257, "a list of at most 256"),
            ([["x", "int8"]], 0, "described by"),
            ([["x", "int8", [1]], ["x", "int8", [1]]], 65, "appears twice"),
            ([["x", "int7", [1]]], 1, "has dtype 'int7'; accepted are bool"),
            ([["x", "int8", [-1]]], 1, "sizes are integers from 0"),
            ([["x", "int8", [1] * 17]], 1, "more than 16 dimensions"),
            ([["x", "int8", [2**32] * 16]], 1, "the body has 1"),
            ([["x", "int8", [0, 2**32, 2**32]]], 0, "too large"),
            ([["x", "int8", [2]]], 1, "ends at byte 2, the body has 1"),
            ([["x", "int8", [1]]], 2, "take 1 bytes, the body has 2"),
            ([], 1, "take 0 bytes, the body has 1"),
        ],
    )
    def test_what_is_wrong_is_said(self, specs, body, message):
        with pytest.raises(InvalidInput, match=message):
            wire.unpack_tensors(specs, memoryview(bytes(body)))

    def test_nothing_of_too_large_a_shape_is_refused_before_it_is_unpacked(self):
        with pytest.raises(InvalidInput, match="too large"):
            wire.body_bytes([["x", "int8", [0, 2**32, 2**32]]])


def views_of(array: np.ndarray[Any, Any]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """The array and non-contiguous or read-only views of it."""
    frozen = array.copy()
    frozen.flags.writeable = False
    return st.sampled_from([array, array.T, frozen, array[..., ::-1] if array.ndim else array])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "1"])
def test_a_budget_is_a_positive_integer(value):
    with pytest.raises(InvalidInput, match="budget_ns is an integer from 1"):
        wire.checked_budget_ns(value)


def test_a_budget_within_the_bound_is_taken():
    assert wire.checked_budget_ns(10, 10) == 10
    with pytest.raises(InvalidInput, match=r"taken is 1e-08 s$"):
        wire.checked_budget_ns(11, 10)
    with pytest.raises(InvalidInput, match="the longest that is taken is"):
        wire.checked_budget_ns(2**63)


def test_a_budget_beyond_the_bound_is_said_as_a_deadline_in_seconds():
    with pytest.raises(InvalidInput) as refused:
        wire.checked_budget_ns(3_999_999_062_354, 3_600_000_000_000, "limits.max_budget_s")
    assert str(refused.value) == (
        "the deadline is 4000 s away; the longest that is taken is 3600 s (limits.max_budget_s)"
    )


def test_one_read_takes_a_piece_of_a_long_body():
    size = 8 * 1024 * 1024
    reader = wire.FrameReader(wire.FrameLimits())
    start = frame({"t": "infer"}, bytes(size))[:100]
    reader.get_buffer()[: len(start)] = start
    assert reader.advance(len(start)) == []
    asked = [len(reader.get_buffer())]
    while not reader.advance(asked[-1]):
        asked.append(len(reader.get_buffer()))
    assert max(asked) <= size // 8


def test_an_idle_connection_takes_no_more_memory_than_has_arrived() -> None:
    """Whoever opens connections has shown no token yet."""
    memory = psutil.Process().memory_info
    before = memory().rss
    readers = [wire.FrameReader(wire.FrameLimits(header_bytes=1 << 20)) for _ in range(100)]
    for reader in readers:
        reader.get_buffer()[:8] = wire.PREFIX.pack(100, 0)
        assert reader.advance(8) == []
    assert memory().rss - before < 20_000_000
