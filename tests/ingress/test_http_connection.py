"""The HTTP door's connections on a transport of memory: framing, limits, order, bad bytes.

`LAXITY_FUZZ_EXAMPLES=1000000 pytest -k fuzz` looks longer; what was found stays in `.hypothesis`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import zlib
from collections.abc import Iterator
from typing import Any, cast

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import InvalidInput
from scheduler.ingress.http.coding import accepted_coding, decoded
from scheduler.ingress.http.connection import Turn
from scheduler.ingress.http.door import HttpDoor
from scheduler.ingress.http.inference import parsed
from scheduler.ingress.http.limits import HttpLimits
from scheduler.ingress.http.messages import Response
from scheduler.ingress.oip.box import ModelInfo
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.tenants import Access, Tenant, hash_of

EXAMPLES = int(os.environ.get("LAXITY_FUZZ_EXAMPLES", "150"))
TOKEN = "lx_0123456789abcdef"
LIMITS = HttpLimits(
    head_bytes=2_000,
    body_bytes=500_000,
    json_bytes=100_000,
    held_bytes=600_000,
    connections=3,
    pipelined=4,
    items=8,
    request_s=0.05,
    idle_s=60,
)
DIGITS = ModelInfo(
    "digits",
    True,
    8,
    ({"name": "x", "dtype": "float32", "shape": [None]},),
    ({"name": "y", "dtype": "float32", "shape": [None]},),
    {"v": ("cpu:0",)},
    True,
)


class Transport(asyncio.Transport):
    """What a connection writes to in a test."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.closed = self.paused = self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.out += data

    def writelines(self, parts: Any) -> None:
        self.out += b"".join(parts)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Peer:
    """A client of a door, without a socket."""

    def __init__(self, door: HttpDoor) -> None:
        self.transport = Transport()
        self.protocol = door()
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes, piece: int = 1 << 30) -> None:
        """Gives the connection bytes, in pieces of some size."""
        while data and not self.transport.closed:
            buffer = cast(memoryview, self.protocol.get_buffer(-1))
            size = min(len(buffer), piece, len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer so far."""
        return read_answers(bytes(self.transport.out))


def read_answers(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    class Reader:
        body = b""

        def on_body(self, body: bytes) -> None:
            self.body += body

        def on_message_complete(self) -> None:
            if parser.get_status_code() != 100:
                found.append((parser.get_status_code(), self.body))
            self.body = b""

    parser = httptools.HttpResponseParser(Reader())
    parser.feed_data(data)
    return found


def echo(turn: Turn) -> None:
    turn.answer(Response(200, (bytes(turn.request.body),), "text/plain"))


@contextlib.contextmanager
def a_door() -> Iterator[HttpDoor]:
    """A door on a loop that runs only where a test lets it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def make() -> HttpDoor:
        return HttpDoor(LIMITS, Access(), echo)

    try:
        yield loop.run_until_complete(make())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.fixture
def door() -> Iterator[HttpDoor]:
    with a_door() as door, running(door):
        yield door


@contextlib.contextmanager
def running(door: HttpDoor) -> Iterator[None]:
    """The door's loop counts as running, as it does where a transport calls."""
    asyncio._set_running_loop(door._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


def wait(door: HttpDoor, seconds: float) -> None:
    asyncio._set_running_loop(None)
    door._loop.run_until_complete(asyncio.sleep(seconds))
    asyncio._set_running_loop(door._loop)


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v2 HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("size", [0, 1, 5_000, 70_000, 300_000])
@pytest.mark.parametrize("piece", [997, 64 * 1024])
def test_bodies_arrive_whole_however_they_are_cut(door: HttpDoor, size: int, piece: int) -> None:
    bodies = [random.Random(number).randbytes(size) for number in range(3)]
    peer = Peer(door)
    peer.send(b"".join(map(post, bodies)), piece)
    assert peer.answers == [(200, body) for body in bodies]
    assert door._held == 0


def test_chunked_bodies_are_taken(door: HttpDoor) -> None:
    peer = Peer(door)
    head = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + post(b"x"), 7)
    assert peer.answers == [(200, b"abcde"), (200, b"x")]


def test_answers_go_in_order_and_too_many_questions_wait(door: HttpDoor) -> None:
    turns: list[Turn] = []
    door.serve = turns.append
    peer = Peer(door)
    peer.send(b"".join(post(b"%d" % number) for number in range(4)))
    assert peer.transport.paused
    for number in (2, 1, 3):
        echo(turns[number])
    assert peer.answers == []
    echo(turns[0])
    assert peer.answers == [(200, b"%d" % number) for number in range(4)]
    assert not peer.transport.paused


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 3_000, 431),
        (b"GET /" + b"x" * 3_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n", 413),
        (post(b"", "Transfer-Encoding: chunked"), 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_what_goes_too_far_is_told_and_ends_the_connection(
    door: HttpDoor, sent: bytes, status: int
) -> None:
    peer = Peer(door)
    peer.send(sent)
    assert [found for found, _ in peer.answers] == [status]
    assert peer.transport.ended
    peer.send(post(b"more"))
    assert len(peer.answers) == 1
    assert door._held == 0


def test_a_chunked_body_without_end_is_cut_at_the_limit(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        peer.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    assert [status for status, _ in peer.answers] == [413]
    assert door._held == 0


def test_all_bodies_together_are_bounded(door: HttpDoor) -> None:
    first, second = Peer(door), Peer(door)
    first.send(post(bytes(400_000))[:-1])
    second.send(post(bytes(400_000))[:-1])
    assert (first.answers, [status for status, _ in second.answers]) == ([], [429])
    first.send(b"\0")
    assert first.answers == [(200, bytes(400_000))]
    assert door._held == 0


def test_slow_senders_are_told_so(door: HttpDoor) -> None:
    peers = [Peer(door) for _ in range(2)]
    peers[0].send(b"GET / HT")
    peers[1].send(post(b"abc")[:-1])
    wait(door, 0.2)
    assert [[status for status, _ in peer.answers] for peer in peers] == [[408], [408]]


def test_one_who_does_not_read_is_not_kept(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.protocol.pause_writing()
    assert peer.transport.paused
    wait(door, 0.2)
    assert peer.transport.closed


def test_idle_connections_make_room_and_busy_ones_do_not(door: HttpDoor) -> None:
    idle, *others = [Peer(door) for _ in range(3)]
    newcomer = Peer(door)
    assert (idle.transport.closed, newcomer.transport.closed) == (True, False)
    door.serve = lambda turn: None
    busy = [*others, newcomer]
    for peer in busy:
        peer.send(post(b""))
    assert Peer(door).transport.closed
    assert not any(peer.transport.closed for peer in busy)


def test_whoever_goes_away_cancels_what_was_asked(door: HttpDoor) -> None:
    gone: list[bytes] = []

    def serve(turn: Turn) -> None:
        turn.on_gone = lambda: gone.append(bytes(turn.request.body))

    door.serve = serve
    peer = Peer(door)
    peer.send(post(b"a") + post(b"b"))
    peer.protocol.connection_lost(None)
    assert gone == [b"a", b"b"]
    assert door._held == 0


def test_the_token_is_asked_for_before_the_body(door: HttpDoor) -> None:
    door.access = Access([Tenant(name="a", tokens=(hash_of(TOKEN),))])
    for headers, status in (
        ((), 401),
        (("Authorization: Bearer wrong",), 401),
        (("Authorization: Basic " + TOKEN,), 401),
        ((f"Authorization: Bearer {TOKEN}",), 200),
    ):
        peer = Peer(door)
        peer.send(post(b"abc", *headers))
        assert [found for found, _ in peer.answers] == [status]
        assert peer.transport.closed == peer.transport.ended == False  # noqa: E712
    peer = Peer(door)
    peer.send(post(bytes(100_000))[:200])
    assert [found for found, _ in peer.answers] == [401]
    assert peer.transport.ended


def test_web_pages_are_kept_out_where_no_token_is_asked_for(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(post(b"{}", "Origin: https://example.com"))
    assert [found for found, _ in peer.answers] == [403]


def test_a_client_that_asks_first_is_told_to_go_on(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(post(b"abc", "Expect: 100-continue")[:-3])
    assert bytes(peer.transport.out) == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.send(b"abc")
    assert peer.answers[-1] == (200, b"abc")


def test_an_upgrade_is_not_taken_up(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + post(b"x"))
    assert peer.answers == [(200, b""), (200, b"x")]


# -- codings


def test_a_bomb_is_cut_at_the_limit() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        decoded(memoryview(bomb), "deflate", 1000)
    with pytest.raises(TooLarge):
        decoded(memoryview(zlib.compress(bomb)), "deflate, deflate", 1000)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "deflate, gzip"]))
def test_any_bytes_decompress_or_are_refused(body: bytes, coding: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert len(decoded(memoryview(body), coding, 1000)) <= 1000


def test_only_known_codings_are_taken_and_given() -> None:
    with pytest.raises(InvalidInput, match="'br' is not known"):
        decoded(memoryview(b"x"), "br", 10)
    assert accepted_coding("gzip, deflate", 5000) == "gzip"
    assert accepted_coding("gzip;q=0, deflate", 5000) == "deflate"
    assert accepted_coding("gzip", 10) is None
    assert accepted_coding("br", 5000) is None


# -- fuzzing

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
    failures: list[BaseException] = []
    with a_door() as door, running(door):
        door.log_failure = failures.append  # type: ignore[assignment, method-assign]
        peer = Peer(door)
        peer.send(b"".join(pieces), piece)
        assert all(status in (200, 400, 413, 429, 431) for status, _ in peer.answers)
        peer.protocol.connection_lost(None)
        assert door._held == 0
        assert door.open_connections == 0
    assert failures == []


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
    headers = {"inference-header-content-length": str(length)} if length >= 0 else {}

    def no_memory(_region: Any) -> memoryview:
        raise InvalidInput("no memory here")

    with contextlib.suppress(InvalidInput):
        request = parsed(DIGITS, "", headers, memoryview(body), 100_000, no_memory)
        assert all(array.dtype.kind in "biuf" for array in request.inputs.values())
