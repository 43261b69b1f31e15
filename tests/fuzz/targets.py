"""What hostile bytes can reach, each as a function of bytes that must not raise.

A target takes any bytes, gives them to one parser of a door, and checks what the parser promises:
it returns, or raises the error that its caller turns into an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgpack
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from scheduler.core.signature import STRING, Signature, TensorSpec
from scheduler.daemon.driver import Driver
from scheduler.datatypes import elements_of, for_model
from scheduler.encodings.codec import restoration
from scheduler.encodings.text import encoding_from
from scheduler.errors import InvalidInput, ProtocolError
from scheduler.ingress.grpc.messages import parsed as parsed_message
from scheduler.ingress.http import connection
from scheduler.ingress.http.coding import decoded
from scheduler.ingress.http.inference import parsed
from scheduler.ingress.http.messages import json_object
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.ingress.oip.deadlines import Defaults, deadline_ms, priority
from scheduler.ingress.oip.request import InferRequest
from scheduler.ingress.oip.snapshot import ModelInfo
from scheduler.journal_format import Decoder, FormatError, decode_header
from scheduler.tenants import ANYONE, Access
from scheduler.wire import FrameLimits, FrameReader, encode, pack_tensors, unpack_tensors
from tests.ingress.memory_transport import Peer, Transport, a_door, running
from workers.link import ModelCard

MODEL = ModelInfo(
    "digits",
    True,
    8,
    ({"name": "x", "dtype": "float32", "shape": [None]},),
    ({"name": "y", "dtype": "float32", "shape": [None]},),
    {"v": ("cpu:0",)},
    True,
)
CARD = ModelCard(
    "digits",
    "",
    Signature((TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)),), True),
    ("v",),
    8,
)
FRAMES = FrameLimits(1_000, 100_000)


def in_pieces(data: bytes, give: Callable[[bytes], bool]) -> None:
    """Gives data in pieces whose size is the first byte, until it is refused."""
    size = data[0] + 1 if data else 1
    for start in range(1, len(data), size):
        if not give(data[start : start + size]):
            return


def frames(data: bytes) -> None:
    """The frames of the native protocol, and the tensors in them."""
    reader = FrameReader(FRAMES)

    def give(piece: bytes) -> bool:
        while piece:
            buffer = reader.get_buffer()
            here = min(len(buffer), len(piece))
            buffer[:here] = piece[:here]
            piece = piece[here:]
            for header, body in reader.advance(here):
                with contextlib.suppress(InvalidInput):
                    unpack_tensors(header.get("in"), body)
        return True

    with contextlib.suppress(ProtocolError):
        in_pieces(data, give)


class _NativeTransport(Transport):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(family=socket.AF_UNIX) if name == "socket" else default


def native(data: bytes) -> None:
    """The native door, by a client that has said hello; whatever was held is let go."""
    loop = asyncio.new_event_loop()

    async def visit() -> None:
        driver = Driver()
        driver.catalog.learn("cpu:0", [CARD], [])
        rules = DoorRules("fuzz", Access(), FRAMES, 3, 10**12)
        door = NativeDoor(driver, rules, dict)
        client = cast(Any, door())
        transport = _NativeTransport()
        client.connection_made(transport)

        def give(piece: bytes) -> bool:
            while piece and not transport.closed:
                buffer = client.get_buffer(-1)
                here = min(len(buffer), len(piece))
                buffer[:here] = piece[:here]
                client.buffer_updated(here)
                piece = piece[here:]
            return not transport.closed

        give(b"".join(encode({"t": "hello", "v": 1})))
        in_pieces(data, give)
        client.connection_lost(None)
        assert door.reading.count == 0
        assert driver.status()["held"] == 0
        await driver.close()

    try:
        loop.run_until_complete(visit())
    finally:
        loop.close()


def http(data: bytes) -> None:
    """The HTTP door: every answer is whole, and nothing is held in the end."""
    failures: list[BaseException] = []
    noted = patch.object(connection, "log_failure", failures.append)
    with a_door() as door, running(door), noted:
        peer = Peer(door)
        peer.send(data[1:], data[0] + 1 if data else 1)
        if b"HEAD" not in data:  # what answers it says a length and has none, and can't be split
            assert all(status in (200, 400, 403, 413, 429, 431) for status, _ in peer.answers)
        peer.protocol.connection_lost(None)
        assert door.held.count == 0
        assert door.open_connections == 0
    if failures:
        raise failures[0]


def _no_memory(_region: Any) -> memoryview:
    raise InvalidInput("no memory here")


def _check_inputs(request: InferRequest) -> None:
    for name, array in request.inputs.items():
        if array.dtype == object:
            specs, buffers = pack_tensors({name: for_model(name, array, STRING)})
            (found,) = unpack_tensors(specs, memoryview(b"".join(buffers))).values()
            assert found.tolist() == array.tolist()
        else:
            assert array.dtype.kind in "biuf"


def http_infer(data: bytes) -> None:
    """The body of an inference request: two bytes of header length, JSON and binary tensors."""
    length = int.from_bytes(data[:2], "little")
    headers = {"inference-header-content-length": str(length)} if length else {}
    with contextlib.suppress(InvalidInput):
        request = parsed(MODEL, "", headers, memoryview(data[2:]), 100_000, _no_memory)
        _check_inputs(request)


def http_json(data: bytes) -> None:
    """The body of an administrator's request."""
    with contextlib.suppress(InvalidInput):
        json.dumps(json_object(data))


def http_coding(data: bytes) -> None:
    """A compressed body: it never becomes larger than is allowed."""
    coding = ("gzip", "deflate", "gzip, deflate", "br")[data[0] % 4 if data else 0]
    with contextlib.suppress(InvalidInput):
        assert len(decoded(memoryview(data[1:]), coding, 10_000)) <= 10_000


def grpc_infer(data: bytes) -> None:
    """The message of a gRPC inference request."""
    with contextlib.suppress(InvalidInput, DecodeError):
        request = parsed_message(pb.ModelInferRequest.FromString(data), _no_memory)
        _check_inputs(request)


def deadlines(data: bytes) -> None:
    """Deadline and priority from headers, one a line."""
    lines = [line.partition(":") for line in data.decode("latin-1").split("\n")]
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    with contextlib.suppress(InvalidInput):
        assert deadline_ms({}, headers, None, "m", ANYONE, Defaults(5.0, {})) > 0
    assert priority({}, headers) in (None, *range(8))


def bytes_tensor(data: bytes) -> None:
    """The elements of a BYTES tensor."""
    with contextlib.suppress(InvalidInput):
        elements_of("x", data)


def journal(data: bytes) -> None:
    """A journal's header and records."""
    values: list[Any] = []
    with contextlib.suppress(msgpack.UnpackException, TypeError, ValueError):
        values.extend(msgpack.Unpacker(io.BytesIO(data), strict_map_key=False, max_ext_len=0))
    with contextlib.suppress(FormatError):
        decoder = Decoder(decode_header(values[0] if values else None))
        for value in values[1:]:
            decoder.record(value)


def jpeg(data: bytes) -> None:
    """An image in the place of an input whose size is free, and a text in that of its encoding."""
    text = "jpeg;layout=NHWC;scale=0.25,1,2;offset=0"
    with contextlib.suppress(InvalidInput):
        found = restoration("x", text, [data], "float32", (None, None, 3), 1 << 20).run()
        assert found.nbytes <= 1 << 20
    with contextlib.suppress(InvalidInput):
        encoding_from(data.decode("latin-1"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(frames, native, http, http_infer, http_json, http_coding),
        *(grpc_infer, deadlines, bytes_tensor, journal, jpeg),
    )
}
