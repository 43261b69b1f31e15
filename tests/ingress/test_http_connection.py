"""The HTTP door's connections on a transport of memory: framing, limits, order, bad bytes."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidInput, Overloaded
from scheduler.ingress.http.coding import accepted_coding, decoded
from scheduler.ingress.http.door import Caller, HttpDoor
from scheduler.ingress.http.limits import LEAST_RATE
from scheduler.ingress.http.turn import Turn
from scheduler.ingress.oip.outcomes import TooLarge
from scheduler.tenants import ANYONE, OWNER, Access, Tenant, hash_of
from tests.ingress.memory_transport import Peer, a_door, echo, post, running, wait

TOKEN = "lx_0123456789abcdef"


@pytest.fixture
def door() -> Iterator[HttpDoor]:
    with a_door() as door, running(door):
        yield door


@pytest.mark.parametrize("size", [0, 1, 5_000, 70_000, 300_000])
@pytest.mark.parametrize("piece", [997, 64 * 1024])
def test_bodies_arrive_whole_however_they_are_cut(door: HttpDoor, size: int, piece: int) -> None:
    bodies = [random.Random(number).randbytes(size) for number in range(3)]
    peer = Peer(door)
    peer.send(b"".join(map(post, bodies)), piece)
    assert peer.answers == [(200, body) for body in bodies]
    assert door.held.count == 0


def test_chunked_bodies_are_taken(door: HttpDoor) -> None:
    peer = Peer(door)
    head = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + post(b"x"), 7)
    assert peer.answers == [(200, b"abcde"), (200, b"x")]


def test_a_body_in_tiny_chunks_takes_the_memory_that_is_counted(door: HttpDoor) -> None:
    peer = Peer(door)
    head = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = head + b"2\r\nab\r\n" * 10_000
    tracemalloc.start()
    try:
        peer.send(sent)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert door.held.count == 20_000
    assert taken < 2 * door.held.count
    peer.send(b"0\r\n\r\n")
    assert peer.answers == [(200, b"ab" * 10_000)]


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


def test_a_question_that_has_to_wait_is_given_the_time(door: HttpDoor) -> None:
    """Of a request that came in half before the connection was read no further, too."""
    turns: list[Turn] = []
    door.serve = turns.append
    peer, last = Peer(door), post(b"last")
    peer.send(b"".join(post(b"%d" % number) for number in range(4)) + last[:-2])
    wait(door, 0.2)
    for turn in turns:
        echo(turn)
    peer.send(last[-2:])
    echo(turns[-1])
    assert [body for _, body in peer.answers] == [b"0", b"1", b"2", b"3", b"last"]


def test_all_that_was_asked_is_answered_before_the_door_closes(door: HttpDoor) -> None:
    turns: list[Turn] = []
    door.serve = turns.append
    many, half, idle = Peer(door), Peer(door), Peer(door)
    many.send(post(b"a") + post(b"b"))
    half.send(post(b"c") + post(b"d")[:-1])
    door.stop()
    assert idle.transport.closed
    half.send(b"d")
    for turn in turns:
        echo(turn)
    for peer, bodies in ((many, [b"a", b"b"]), (half, [b"c", b"d"])):
        assert [body for _, body in peer.answers] == bodies
        assert peer.transport.closed
        assert bytes(peer.transport.out).count(b"connection: close") == 1


def test_a_head_is_as_long_as_it_is_wherever_it_begins(door: HttpDoor) -> None:
    """What came before it in the same piece does not count."""
    peer, whole = Peer(door), post(b"x")
    peer.send(post(b"a" * (door.limits.head_bytes + 1)) + whole[:20])
    peer.send(whole[20:])
    assert [(status, len(body)) for status, body in peer.answers] == [
        (200, door.limits.head_bytes + 1),
        (200, 1),
    ]
    peer.send(b"GET /")
    while not peer.transport.closed and len(peer.answers) == 2:
        peer.send(b"x" * 100)
    assert peer.answers[-1][0] == 431


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
    assert door.held.count == 0


def test_a_chunked_body_without_end_is_cut_at_the_limit(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        peer.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    assert [status for status, _ in peer.answers] == [413]
    assert door.held.count == 0


def test_all_bodies_together_are_bounded(door: HttpDoor) -> None:
    first, second = Peer(door), Peer(door)
    first.send(post(bytes(400_000))[:-1])
    second.send(post(bytes(400_000))[:-1])
    assert (first.answers, [status for status, _ in second.answers]) == ([], [429])
    first.send(b"\0")
    assert first.answers == [(200, bytes(400_000))]
    assert door.held.count == 0


def test_what_the_door_refuses_is_said_in_the_words_that_are_asked_for(door: HttpDoor) -> None:
    door.held.hold(Tenant(name="a"), door.limits.held_bytes)
    for compat, status in (("laxity", 429), ("triton", 503)):
        door.compat = compat
        peer = Peer(door)
        peer.send(post(b"abc"))
        assert [found for found, _ in peer.answers] == [status]


def test_slow_senders_are_told_so(door: HttpDoor) -> None:
    peers = [Peer(door) for _ in range(2)]
    peers[0].send(b"GET / HT")
    peers[1].send(post(b"abc")[:-1])
    wait(door, 0.2)
    assert [[status for status, _ in peer.answers] for peer in peers] == [[408], [408]]


def test_a_body_that_comes_too_slowly_is_given_back_once(door: HttpDoor) -> None:
    peers = [Peer(door) for _ in range(2)]
    peers[0].send(post(bytes(20_000))[:-19_000])
    head = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    peers[1].send(head + b"3\r\nabc\r\n")
    wait(door, 0.5)
    assert [[status for status, _ in peer.answers] for peer in peers] == [[408], [408]]
    assert door.held.count == 0


def test_one_who_does_not_read_is_not_kept(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.protocol.pause_writing()
    assert peer.transport.paused
    wait(door, 0.2)
    assert peer.transport.closed


def test_one_who_reads_slowly_is_kept_as_long_as_he_reads_on(door: HttpDoor) -> None:
    """An answer has as much time to go out as a request of its size has to come in."""
    least = round(door.limits.request_s * LEAST_RATE)
    peer = Peer(door)
    peer.transport.unread = unread = [4 * least, *2 * [3 * least], *2 * [2 * least], least + 1]
    peer.protocol.pause_writing()
    while not peer.transport.closed:
        assert not peer.answers
        wait(door, 0.01)
    assert unread == []
    reader = Peer(door)
    reader.protocol.pause_writing()
    reader.protocol.resume_writing()
    wait(door, 0.2)
    assert not reader.transport.closed


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


@pytest.mark.parametrize("said", [b"GE", post(b"abc")[:-10], post(b"abc")[:-1]])
def test_who_has_not_shown_a_token_keeps_nobody_out(door: HttpDoor, said: bytes) -> None:
    door.access = Access([Tenant(name="a", tokens=(hash_of(TOKEN),))])
    strangers = [Peer(door) for _ in range(3)]
    for stranger in strangers:
        stranger.send(said)
    known = Peer(door)
    known.send(post(b"abc", f"Authorization: Bearer {TOKEN}")[:-1])
    for _ in strangers:
        Peer(door).send(said)
    known.send(b"c")
    assert known.answers == [(200, b"abc")]
    assert all(stranger.transport.closed for stranger in strangers)


def test_a_tenant_that_is_busy_on_many_connections_keeps_no_other_out(door: HttpDoor) -> None:
    other = "lx_fedcba9876543210"
    tenants = {"a": TOKEN, "b": other}
    door.access = Access(
        [Tenant(name=name, tokens=(hash_of(token),)) for name, token in tenants.items()]
    )
    slow, more, last = [Peer(door) for _ in range(3)]
    ask, their = (post(b"abc", f"Authorization: Bearer {token}") for token in (TOKEN, other))
    slow.send(ask[:-1])
    for peer in (more, last):
        peer.send(ask[:-1])
    for peer in (more, last):
        peer.send(b"c")
        ((status, words),) = peer.answers
        assert (status, b"'a' may have 1 connections at once" in words) == (429, True)
    newcomer = Peer(door)
    newcomer.send(their)
    assert newcomer.answers == [(200, b"abc")]
    slow.send(b"c")
    assert slow.answers == [(200, b"abc")]
    last.send(ask)
    assert [status for status, _ in last.answers] == [429, 200]


def test_whoever_goes_away_cancels_what_was_asked(door: HttpDoor) -> None:
    gone: list[bytes] = []

    def serve(turn: Turn) -> None:
        turn.on_gone = lambda: gone.append(bytes(turn.request.body))

    door.serve = serve
    peer = Peer(door)
    peer.send(post(b"a") + post(b"b"))
    peer.protocol.connection_lost(None)
    assert gone == [b"a", b"b"]
    assert door.held.count == 0


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


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LocalHost.:8700", "box.localhost:8700", "")),
        *((host, 200) for host in ("127.0.0.1", "127.0.0.1:8700", "127.1:8700", "10.0.0.7")),
        *((host, 200) for host in ("[::1]:8700", "[::1]", "::1", socket.gethostname())),
        *((host, 200) for host in ("a", "A.:8700")),  # the configured name
        *((host, 403) for host in ("evil.example", "evil.example:8700", "localhost.evil.example")),
        *(
            (host, 403)
            for host in ("127.0.0.1.evil.example", "notlocalhost", "b", "evil@localhost")
        ),
    ],
)
def test_a_name_that_a_web_page_may_have_chosen_opens_no_door(
    door: HttpDoor, host: str, status: int
) -> None:
    """A page whose own name leads here sends no Origin with what it reads."""
    for method in ("GET", "POST"):
        peer = Peer(door)
        peer.send(f"{method} / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert [found for found, _ in peer.answers] == [status]
    assert status == 200 or b"doors.host_names" in peer.answers[0][1]


def test_no_name_is_needed_and_with_a_token_any_is_right(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(b"GET / HTTP/1.0\r\n\r\n")
    assert [found for found, _ in peer.answers] == [200]
    door.access = Access([Tenant(name="a", tokens=(hash_of(TOKEN),))])
    peer = Peer(door)
    for origin in ("", "Origin: https://example.com\r\n"):
        head = f"GET / HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {TOKEN}\r\n{origin}\r\n"
        peer.send(head.encode())
    assert [found for found, _ in peer.answers] == [200, 200]


def test_names_are_not_asked_for_where_no_web_page_can_come_in(door: HttpDoor) -> None:
    named = {"host": "evil.example"}
    assert door.admit(Caller(is_owner=True, certificates=()), named) is OWNER
    encrypted = Caller(is_owner=False, certificates=(), is_tls=True)
    assert door.admit(encrypted, named) is ANYONE


def test_a_client_that_asks_first_is_told_to_go_on(door: HttpDoor) -> None:
    peer = Peer(door)
    peer.send(post(b"abc", "Expect: 100-continue")[:-3])
    assert bytes(peer.transport.out) == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.send(b"abc")
    assert peer.answers[-1] == (200, b"abc")
    door.access = Access([Tenant(name="a", tokens=(hash_of(TOKEN),))])
    refused = Peer(door)
    refused.send(post(b"abc", "Expect: 100-continue")[:-3])
    assert [status for status, _ in refused.answers] == [401]


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


@pytest.mark.parametrize("size", [0, 1, 65_536, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_a_body_comes_out_whole_whatever_its_size(size: int, kind: str) -> None:
    plain = bytes(size) if kind == "zeros" else random.Random(1).randbytes(size)
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for packed, coding in (
        (gzip.compress(plain), "gzip"),
        (zlib.compress(plain), "deflate"),
        (bare.compress(plain) + bare.flush(), "deflate"),
    ):
        assert decoded(memoryview(packed), coding, size) == plain
        with pytest.raises(InvalidInput, match="after the end"):
            decoded(memoryview(packed + b"x" * 70_000), coding, size)
        with pytest.raises(InvalidInput, match="too early"):
            decoded(memoryview(packed[:-1]), coding, size)
        if size:
            with pytest.raises(TooLarge):
                decoded(memoryview(packed), coding, size - 1)


def test_what_a_body_becomes_counts_until_it_is_answered(door: HttpDoor) -> None:
    turns: list[Turn] = []
    door.serve = turns.append
    peer = Peer(door)
    peer.send(post(b"packed"))
    (turn,) = turns
    with pytest.raises(Overloaded):
        turn.take_body(memoryview(bytes(door.limits.held_bytes + 1)))
    assert door.held.count == len(b"packed")
    turn.take_body(memoryview(bytes(5000)))
    turn.hold_beside(1000)
    with pytest.raises(Overloaded):
        turn.hold_beside(door.limits.held_bytes)
    assert door.held.count == 6000
    echo(turn)
    assert peer.answers == [(200, bytes(5000))]
    assert door.held.count == 0


@pytest.mark.parametrize("cut", [20, 200])
def test_a_request_has_the_time_that_its_size_allows(door: HttpDoor, cut: int) -> None:
    """However its head is cut, and though no header tells how large it is."""
    body = bytes(150_000)  # 1.5 s at the least rate
    whole = post(body)
    peer = Peer(door)
    peer.send(whole[:cut])
    peer.send(whole[cut:-1])
    wait(door, 0.2)
    peer.send(whole[-1:])
    assert peer.answers == [(200, body)]


def test_a_chunked_request_has_the_time_that_its_size_allows(door: HttpDoor) -> None:
    head = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"186a0\r\n" + bytes(100_000) + b"\r\n"  # 1 s at the least rate
    peer = Peer(door)
    peer.send(head + chunk)
    wait(door, 0.2)
    peer.send(b"0\r\n\r\n")
    assert peer.answers == [(200, bytes(100_000))]


def test_requests_that_follow_each_other_without_a_gap_have_a_time_each(door: HttpDoor) -> None:
    turns: list[Turn] = []
    door.serve = turns.append
    peer, one = Peer(door), post(bytes(40_000))  # 0.4 s at the least rate
    peer.send(one + one[:-1])
    for _ in range(6):
        wait(door, 0.1)
        peer.send(one[-1:] + one[:-1])
        echo(turns.pop(0))
    assert [status for status, _ in peer.answers] == [200] * 6
