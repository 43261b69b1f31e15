"""The native protocol: encoding and decoding of frames. No sockets, no clock.

A frame is a prefix of two little-endian uint32 (header bytes, body bytes), a msgpack map (the
header) and raw tensor bytes (the body). Tensors are stored in the body in the order of the header's
list of `[name, dtype, shape]`, each starting at a multiple of `ALIGNMENT`.

All checks of whether bytes are acceptable are in this file. A `ProtocolError` means that the stream
can't be parsed any further; an `InvalidInput` concerns one frame only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from scheduler.core.signature import DTYPES, element_bytes
from scheduler.errors import InvalidInput, ProtocolError
from scheduler.texts import as_text

VERSION = 1
ALIGNMENT = 64
MAX_TENSORS = 256
MAX_DIMENSIONS = 16
PREFIX = struct.Struct("<II")
ANSWER_BYTES = 1 << 30
"""The most that the tensors of one answer may take; a client would close the connection at more."""

_CHUNK_BYTES = 256 * 1024
# Bytes of a large body that are read before its header is known must be copied, so this is small.
_READ_BYTES = 64 * 1024
_JOIN_BYTES = 32 * 1024
# One read lasts as long as the sender keeps up, and blocks the event loop. So a body of more than a
# megabyte is read in pieces, between which other tasks run.
_WHOLE_BYTES = 1024 * 1024
_PIECE_BYTES = 256 * 1024
_MAX_BUDGET_NS = 2**62
_MAX_DIMENSION = 2**32
_MOST_EMPTY = 2**40
"""The limit for shapes of empty tensors: NumPy can't represent larger ones even without elements,
and a limit per dimension is not enough."""
# Making a dtype's name takes longer than everything else for a small tensor.
_NAMES: dict[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPES}

Header = dict[str, Any]
Body = memoryview
Tensors = dict[str, NDArray[Any]]
Allocate = Callable[[Header, int], "memoryview | None"]


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest header and body, in bytes, that a reader accepts."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024


def allocate(_header: Header, body_bytes: int) -> memoryview:
    """New memory for one body; not zeroed, because the reader fills all of it."""
    return np.empty(body_bytes, np.uint8).data


class FrameReader:
    """Splits a byte stream into frames; large bodies are read in place.

    The caller gets a buffer for the next bytes from `get_buffer`, fills some of it, and passes the
    count to `advance`, which returns the frames that are complete. `allocate` is called once per
    body that does not fit the reader's own buffer, with the header and the body's size. It returns
    the memory to fill, or None to skip the body (the frame then has body None).

    Attributes:
        header_bytes: The total size of the headers received so far.
    """

    def __init__(self, limits: FrameLimits, allocate: Allocate = allocate) -> None:
        """Starts at a frame boundary."""
        self.header_bytes = 0
        self._limits = limits
        self._allocate = allocate
        # Room for any header and small body, wherever the frame starts in it.
        # Not zeroed: an idle connection then takes no more memory than has arrived on it.
        self._chunk = np.empty(max(_CHUNK_BYTES, 2 * limits.header_bytes), np.uint8).data
        self._start = 0
        self._end = 0
        self._header: Header | None = None
        self._body: memoryview | None = None
        self._missing = 0

    @property
    def held_bytes(self) -> int:
        """How many bytes of an incoming large body have arrived; 0 between frames."""
        return 0 if self._body is None else len(self._body) - self._missing

    def skip(self) -> None:
        """Skips the rest of the incoming body, and releases what has arrived."""
        self._body = None

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes of the stream; never empty."""
        if self._header is None:
            return self._chunk[self._end : self._end + _READ_BYTES]
        if self._body is None:
            return self._chunk[: min(self._missing, _CHUNK_BYTES)]
        start = len(self._body) - self._missing
        if self._missing > _WHOLE_BYTES:
            return self._body[start : start + _PIECE_BYTES]
        return self._body[start:]

    def advance(self, count: int) -> list[tuple[Header, Body | None]]:
        """Processes `count` new bytes in the last buffer, and returns the frames now complete.

        Raises:
            ProtocolError: The stream can't be parsed; close the connection.
        """
        if self._header is not None:
            self._missing -= count
            if self._missing:
                return []
            frame = (self._header, self._body)
            self._header = self._body = None
            return [frame]
        self._end += count
        frames: list[tuple[Header, Body | None]] = []
        while (frame_or_none := self._next()) is not None:
            frames.append(frame_or_none)
        self._compact()
        return frames

    def _next(self) -> tuple[Header, Body | None] | None:
        have = self._end - self._start
        if have < PREFIX.size or self._header is not None:
            return None
        header_bytes, body_bytes = PREFIX.unpack_from(self._chunk, self._start)
        self._check_sizes(header_bytes, body_bytes)
        body_at = self._start + PREFIX.size + header_bytes
        if body_at > self._end:
            return None
        whole = body_at + body_bytes <= self._end
        if not whole and body_bytes <= _JOIN_BYTES:
            return None
        header = _unpack_header(self._chunk[body_at - header_bytes : body_at])
        self.header_bytes += header_bytes
        if whole and body_bytes <= _JOIN_BYTES:
            self._start = body_at + body_bytes
            return header, memoryview(bytes(self._chunk[body_at : self._start]))
        body = self._allocate(header, body_bytes)
        here = min(body_bytes, self._end - body_at)
        if body is not None:
            body[:here] = self._chunk[body_at : body_at + here]
        self._start = body_at + here
        if whole:
            return header, body
        self._header, self._body, self._missing = header, body, body_bytes - here
        return None

    def _check_sizes(self, header_bytes: int, body_bytes: int) -> None:
        limits = self._limits
        if not 0 < header_bytes <= limits.header_bytes:
            raise ProtocolError(
                f"a frame header has 1 to {limits.header_bytes} bytes, not {header_bytes}"
            )
        if body_bytes > limits.body_bytes:
            raise ProtocolError(
                f"a frame body has at most {limits.body_bytes} bytes, not {body_bytes}"
            )

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and len(self._chunk) - self._end < len(self._chunk) // 2:
            held = self._end - self._start
            self._chunk[:held] = bytes(self._chunk[self._start : self._end])
            self._start, self._end = 0, held


def _unpack_header(raw: memoryview) -> Header:
    try:
        header = msgpack.unpackb(raw, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        told = "a frame header is one msgpack map with string keys"
        raise ProtocolError(": ".join(filter(None, (told, str(error))))) from None
    if not isinstance(header, dict) or not isinstance(header.get("t"), str):
        raise ProtocolError("a frame header is a msgpack map with the message type under 't'")
    return header


def encode(header: Header, buffers: Sequence[Any] = ()) -> list[Any]:
    """Encodes one frame as buffers, ready for `writelines`.

    A small frame is one `bytes`; large tensors are not copied.

    Args:
        header: The message; must be serialisable with msgpack.
        buffers: The body's parts, as `pack_tensors` returns them.
    """
    packed = msgpack.packb(header)
    body_bytes = sum(map(len, buffers))
    parts = [PREFIX.pack(len(packed), body_bytes), packed, *buffers]
    return [b"".join(parts)] if body_bytes <= _JOIN_BYTES else [b"".join(parts[:2]), *parts[2:]]


def header_bytes(frame: Sequence[Any], body_bytes: int) -> int:
    """The size of the header in a frame with a body of so many bytes, as `encode` returns it."""
    return sum(map(len, frame)) - body_bytes - PREFIX.size


def pack_tensors(tensors: Mapping[str, NDArray[Any]]) -> tuple[list[list[Any]], list[Any]]:
    """The header's tensor list and the body's buffers for named arrays.

    Contiguous little-endian arrays of numbers are not copied, nor is text of one length (`S<n>`).

    Raises:
        InvalidInput: A dtype or a text can't be sent.
    """
    specs: list[list[Any]] = []
    buffers: list[Any] = []
    padding = 0
    for name, tensor in tensors.items():
        dtype = _NAMES.get(tensor.dtype) or tensor.dtype.name
        if dtype not in DTYPES:
            tensor = as_text(name, tensor)
            dtype = tensor.dtype.str[1:]
        specs.append([name, dtype, list(tensor.shape)])
        if padding:
            buffers.append(bytes(padding))
        if tensor.nbytes:
            buffers.append(_bytes_of(tensor))
        padding = -tensor.nbytes % ALIGNMENT
    return specs, buffers


def _bytes_of(tensor: NDArray[Any]) -> memoryview:
    if not tensor.dtype.isnative:
        tensor = tensor.astype(tensor.dtype.newbyteorder("="))
    tensor = np.ascontiguousarray(tensor)
    return (tensor.view(np.uint8) if tensor.dtype.kind == "S" else tensor).data.cast("B")


def body_bytes(specs: Any) -> int:
    """The size of the body that a tensor list describes.

    Raises:
        InvalidInput: The list does not follow the protocol.
    """
    size = 0
    for spec in _checked_list(specs):
        _, _, shape, element = _checked_spec(spec)
        size += -size % ALIGNMENT + math.prod(shape) * element
    return size


def unpack_tensors(specs: Any, body: Body | None) -> Tensors:
    """Named arrays as views of a body's memory, without a copy.

    Raises:
        InvalidInput: The list or the body's size does not follow the protocol.
    """
    available = len(body) if body is not None else 0
    tensors: Tensors = {}
    offset = end = 0
    for spec in _checked_list(specs):
        name, dtype, shape, element = _checked_spec(spec)
        if name in tensors:
            raise InvalidInput(f"tensor {name!r} appears twice")
        count = math.prod(shape)
        end = offset + count * element
        if end > available:
            raise InvalidInput(
                f"tensor {name!r} ({dtype} {shape}) ends at byte {end}, the body has {available}"
            )
        try:
            tensors[name] = np.ndarray(shape, dtype, body if count else None, offset)
        except ValueError:
            # It is empty, but the product of its other dimensions exceeds the address space.
            raise InvalidInput(f"tensor {name!r} has shape {shape}; that is too large") from None
        offset = end + (-end % ALIGNMENT)
    if end != available:
        raise InvalidInput(f"the tensors take {end} bytes, the body has {available}")
    return tensors


def alike(
    items: Sequence[tuple[list[list[Any]], Body]],
) -> tuple[list[list[Any]], list[Body]]:
    """Brings items of one class under one tensor list, padding texts to the longest."""
    specs = items[0][0]
    bodies = [body for _, body in items]
    if all(dtype in DTYPES for _, dtype, _ in specs):
        return specs, bodies
    unpacked = [unpack_tensors(each, body) for each, body in items]
    for name, dtype, _ in specs:
        if dtype not in DTYPES:
            widest = np.result_type(*(tensors[name].dtype for tensors in unpacked))
            for tensors in unpacked:
                tensors[name] = tensors[name].astype(widest, copy=False)
    packed = [pack_tensors(tensors) for tensors in unpacked]
    return packed[0][0], [memoryview(b"".join(buffers)) for _, buffers in packed]


def _checked_list(specs: Any) -> list[Any]:
    if not isinstance(specs, list) or len(specs) > MAX_TENSORS:
        raise InvalidInput(f"tensors are a list of at most {MAX_TENSORS} [name, dtype, shape]")
    return specs


def _checked_spec(spec: Any) -> tuple[str, str, list[int], int]:
    """The name, dtype and shape of a tensor, and the size of an element in bytes."""
    if type(spec) is not list or len(spec) != 3:
        raise InvalidInput("a tensor is described by [name, dtype, shape]")
    name, dtype, shape = spec
    if type(name) is not str or type(dtype) is not str or type(shape) is not list:
        raise InvalidInput("a tensor is described by [name, dtype, shape]")
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(f"tensor {name!r} has more than {MAX_DIMENSIONS} dimensions")
    element = element_bytes(dtype)
    if element is None:
        accepted = ", ".join((*DTYPES, "S<n> (text of n bytes)"))
        raise InvalidInput(f"tensor {name!r} has dtype {dtype!r}; accepted are {accepted}")
    for size in shape:
        if type(size) is not int or not 0 <= size <= _MAX_DIMENSION:
            raise InvalidInput(
                f"tensor {name!r} has shape {shape}; sizes are integers from 0 to 2**32"
            )
    if 0 in shape and math.prod(filter(None, shape)) > _MOST_EMPTY:
        raise InvalidInput(f"tensor {name!r} has no elements, but shape {shape} is too large")
    return name, dtype, shape, element


def checked_budget_ns(value: Any, max_ns: int = _MAX_BUDGET_NS, setting: str = "") -> int:
    """Checks a budget from a header.

    Args:
        value: The value in the header.
        max_ns: The longest budget.
        setting: The configuration key that sets this limit, for the message.

    Raises:
        InvalidInput: It is not an integer of nanoseconds from 1 to `max_ns`.
    """
    if type(value) is not int or value <= 0:
        raise InvalidInput(
            f"budget_ns is an integer from 1 to {max_ns} (nanoseconds left), not {value!r}"
        )
    if value > max_ns:
        # In seconds, because few callers know that a deadline is sent as budget_ns.
        longest = f"{max_ns / 1e9:.12g} s" + (f" ({setting})" if setting else "")
        raise InvalidInput(
            f"the deadline is {value / 1e9:.6g} s away; the longest that is taken is {longest}"
        )
    return value
