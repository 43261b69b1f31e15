"""What almost makes sense, for the parsers of the HTTP and gRPC doors; see `tests/fuzz` as well.

`LAXITY_FUZZ_EXAMPLES=1000000 pytest -k fuzz` looks longer; what was found stays in `.hypothesis`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.fuzz.targets import grpc_infer, http, http_infer
from tests.ingress.memory_transport import post

EXAMPLES = int(os.environ.get("LAXITY_FUZZ_EXAMPLES", "150"))
GOOD = (
    b'{"id":"1","inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":'
    b'{"binary_data_size":8}}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
)
PIECES = [
    *(b"POST /v2/models/m/infer HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"HEAD * HTTP/1.1\r\n"),
    *(b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: x\r\nConnection: upgrade\r\n", b"\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"abcde"),
    *(b"Content-Encoding: gzip\r\n", b"Trailer: x\r\n", b": y\r\n", b"a\0b: c\r\n", post(b"good")),
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=30), max_size=12), st.integers(1, 200))
def test_fuzz_any_bytes_get_answers_or_a_closed_door(pieces: list[bytes], piece: int) -> None:
    http(bytes([piece - 1]) + b"".join(pieces))


KEYS = [
    *("id", "inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "timeout"),
    *("binary_data_size", "binary_data", "classification", "shared_memory_region"),
]
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(json_like, st.binary(max_size=20), st.integers(-1, 400) | st.none())
def test_fuzz_any_request_is_parsed_or_refused(value: Any, tail: bytes, length: int | None) -> None:
    text = GOOD if value is None else json.dumps(value).encode()
    check_parsing(text + tail, length if length is not None else len(text))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_fuzz_a_damaged_request_is_parsed_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(GOOD + bytes(8))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check_parsing(bytes(damaged), len(GOOD))


def check_parsing(body: bytes, length: int) -> None:
    http_infer(max(0, length).to_bytes(2, "little") + body)


TENSORS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["x", "y", ""]),
    datatype=st.sampled_from(["FP32", "BF16", "BYTES", "BOOL", "INT8", "UINT64", "fp32", ""]),
    shape=st.lists(st.integers(-1, 3) | st.sampled_from([2**40, -(2**63)]), max_size=4),
    contents=st.none()
    | st.builds(
        pb.InferTensorContents,
        fp32_contents=st.lists(st.floats(width=32), max_size=3),
        int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        bool_contents=st.lists(st.booleans(), max_size=3),
        bytes_contents=st.lists(st.binary(max_size=5), max_size=3),
        uint64_contents=st.lists(st.integers(0, 2**64 - 1), max_size=3),
    ),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(TENSORS, max_size=3), st.lists(st.binary(max_size=9), max_size=3), st.data())
def test_fuzz_any_grpc_message_is_parsed_or_refused(
    tensors: list[Any], raw: list[bytes], data: st.DataObject
) -> None:
    message = pb.ModelInferRequest(model_name="m", inputs=tensors, raw_input_contents=raw)
    for name in ("timeout", "shared_memory_region", "classification"):
        if data.draw(st.booleans()):
            message.parameters[name].int64_param = data.draw(st.integers(-2, 9))
            message.outputs.add(name="y").parameters[name].string_param = "r"
    grpc_infer(message.SerializeToString())
