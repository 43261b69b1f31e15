"""Ten thousand malformed frames: a clear no or a closed door, and nobody else notices."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest

from scheduler import Client
from scheduler.errors import ERRORS
from scheduler.wire import FrameLimits, FrameReader
from tests.e2e.running_agent import RunningAgent

FRAMES = 10_000
SEED = 20_261
HELLO = {"t": "hello", "v": 1}
ALLOWED_GROWTH_BYTES = 64 << 20

BAD_BUDGETS: list[Any] = [
    *(None, True, "50", [], {}, 0, -1, -(2**63), 2**63, 1.5, 1e300),
    *(float("nan"), float("inf"), -float("inf")),
]
BAD_TENSORS: list[Any] = [
    *(None, 7, "x", {}, [None], [[]], [["x"]], [["x", "float32"]], [["x", "float32", 3]]),
    *([["x", "float64", [3]]], [["x", "int4", [3]]], [["x", "object", [3]]], [[1, "float32", [3]]]),
    *([["x", "float32", [-3]]], [["x", "float32", [2**62]]], [["x", "float32", [2**40] * 3]]),
    *([["x", "float32", [4]]], [["x", "float32", [3, 1]]], [["x", "float32", [0]]]),
    *([["x", "float32", [1.5]]], [["x", "float32", [True]]], [["x", "float32", [1] * 40]]),
    *([["y", "float32", [3]]], [["x", "float32", [3]], ["x", "float32", [3]]], []),
    *([["x", "float32", [3]], ["z", "float32", [3]]], [["x", "float32", [2, 3]]]),
    [[f"x{i}", "float32", [3]] for i in range(300)],
]
BAD_VALUES: dict[str, list[Any]] = {
    "model": [None, 7, "", "rel", "../relu", "relu\0", "x" * 5000, ["relu"]],
    "variant": [7, "", "2", ["1"], {}],
    "priority": [-1, 8, 1.5, "high", None, True],
    "weight": [0, -1, 1e-305, 1e30, float("nan"), float("inf"), "heavy", None, True],
    "late": [1, "yes", None],
    "id": [None, "one", 1.5, [], True],
    "t": ["", "infer ", "hello", "admin", "x" * 1000],
    "budget_ns": BAD_BUDGETS,
    "in": BAD_TENSORS,
}
BAD_FIELDS = [{key: value} for key, values in BAD_VALUES.items() for value in values]


def frame(header: Any, body: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(header)
    return struct.pack("<II", len(packed), len(body)) + packed + body


def infer(number: int, **changes: Any) -> dict[str, Any]:
    specs = [["x", "float32", [3]]]
    good = {"t": "infer", "id": number, "model": "relu", "budget_ns": 10**9, "in": specs}
    return {**good, **changes}


def wrong_frame(rng: random.Random, number: int) -> bytes:
    """A frame whose framing is right and whose content is not."""
    body = rng.randbytes(12)
    if rng.random() < 0.2:
        return frame(infer(number), rng.randbytes(rng.choice([0, 1, 11, 13, 64, 5000])))
    return frame(infer(number, **rng.choice(BAD_FIELDS)), body)


def wrong_stream(rng: random.Random) -> bytes:
    """Bytes that can't be followed as frames, or end in the middle of one."""
    good = frame(infer(1), bytes(12))
    return rng.choice(
        [
            lambda: rng.randbytes(rng.randrange(1, 400)),
            lambda: struct.pack("<II", 2**32 - 1, 0) + rng.randbytes(50),
            lambda: struct.pack("<II", 0, 0),
            lambda: struct.pack("<II", 20, 2**32 - 1) + rng.randbytes(20),
            lambda: good[: rng.randrange(1, len(good))],
            lambda: frame([1, 2, 3]),
            lambda: frame({"no": "type"}),
            lambda: frame({"t": {}}),
            lambda: struct.pack("<II", 5, 0) + b"\xc1\xc1\xc1\xc1\xc1",
            lambda: struct.pack("<II", 3000, 0) + b"\x91" * 3000,
            lambda: frame({"t": "infer", 7: 8}),
        ]
    )()


class Peer:
    """A client that says what it likes."""

    def __init__(self, path: str, hello: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self._reader = FrameReader(FrameLimits(1 << 20, 1 << 26))
        self._answers: Iterator[dict[str, Any]] = iter(())
        if hello:
            self.socket.sendall(frame(HELLO))
            assert self.answer()["t"] == "welcome"

    def answer(self) -> dict[str, Any]:
        """The next frame's header; `EOFError` once the daemon hung up."""
        while True:
            for header in self._answers:
                return header
            count = self.socket.recv_into(self._reader.get_buffer())
            if not count:
                raise EOFError
            self._answers = iter([header for header, _ in self._reader.advance(count)])

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def speaks_clearly(answer: dict[str, Any]) -> bool:
    return answer["t"] == "error" and answer["code"] in ERRORS and len(answer["message"]) > 10


@pytest.fixture
def path(shared_agent: RunningAgent) -> str:
    return shared_agent.url.removeprefix("unix://")


def test_malformed_frames_are_refused_and_others_notice_nothing(
    shared_agent: RunningAgent, path: str
) -> None:
    rng = random.Random(SEED)
    scheduler = psutil.Process(shared_agent.pid_of("SchedulerProcess"))
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    with Client(shared_agent.url) as bystander:
        before = scheduler.memory_info().rss
        for _ in range(FRAMES // 100):
            witness = bystander.submit("relu", {"x": x}, deadline_ms=5000)
            with Peer(path) as peer:
                for number in range(80):
                    peer.socket.sendall(wrong_frame(rng, number))
                    assert speaks_clearly(peer.answer())
            for _ in range(20):
                refused_stream(path, wrong_stream(rng), hello=rng.random() < 0.7)
            np.testing.assert_array_equal(witness.result()["y"], [0, 0, 2])
        assert scheduler.memory_info().rss - before < ALLOWED_GROWTH_BYTES
        status = bystander.status()
        assert status["held"] == 0
        assert status["pid"] == scheduler.pid


def refused_stream(path: str, data: bytes, hello: bool) -> None:
    """Says something that is not the protocol: an error or a closed connection, never a result."""
    with Peer(path, hello) as peer:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.socket.sendall(data)
            peer.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                assert speaks_clearly(peer.answer())


def test_one_client_cannot_answer_its_way_past_hello(path: str) -> None:
    with Peer(path, hello=False) as peer:
        peer.socket.sendall(frame(infer(1), bytes(12)))
        answer = peer.answer()
        assert (answer["t"], answer["code"]) == ("error", "protocol")
        with pytest.raises(EOFError):
            peer.answer()


def test_another_version_is_told_which_one_is_spoken(path: str) -> None:
    with Peer(path, hello=False) as peer:
        peer.socket.sendall(frame({"t": "hello", "v": 99}))
        assert "version 1" in peer.answer()["message"]


def test_not_a_number_as_input_is_data_like_any_other(shared_agent: RunningAgent) -> None:
    with Client(shared_agent.url) as client:
        result = client.infer("relu", {"x": np.full(3, np.nan, np.float32)}, deadline_ms=20_000)
    assert result["y"].shape == (3,)


def test_bodies_beyond_what_the_box_holds_are_refused_one_by_one(path: str) -> None:
    size = 60 * 10**6
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(path)) for _ in range(6)]
        specs = [["x", "uint8", [size]]]
        for number, peer in enumerate(peers):
            packed = msgpack.packb(infer(number, **{"in": specs}))
            head = struct.pack("<II", len(packed), size) + packed
            # All but the last byte: each body is held while it comes in, if there is room.
            peer.socket.sendall(head + bytes(size - 1))
        for peer in peers:
            peer.socket.sendall(b"\0")
        codes = sorted(peer.answer()["code"] for peer in peers)
    assert set(codes) <= {"invalid_input", "overloaded"}
    assert "invalid_input" in codes
