from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import pytest

from scheduler import (
    AsyncClient,
    AsyncTask,
    Client,
    DeadlineExpired,
    DeadlineInfeasible,
    InvalidInput,
    ProtocolError,
    Unauthorized,
    Unavailable,
    wire,
)
from scheduler.address import AddressError, parse_address
from scheduler.client import dialer
from scheduler.client.call import infer_call, question_call
from scheduler.client.connection import connect
from scheduler.client.exchange import Exchange
from tests.fake_box import IMAGE, FakeBox, Peer, ignore, image, welcome
from tests.waiting import PATIENCE_S, eventually

MINUTE_MS = 60_000


@pytest.fixture
def client(box):
    with Client(box.url) as client:
        yield client


def test_nobody_there(tmp_path):
    url = f"unix://{tmp_path}/none"
    with pytest.raises(
        Unavailable,
        match=rf"cannot reach the daemon at {url}: No such file .*; is edge_agent running\?",
    ):
        Client(url, connect_timeout_s=0.5)


def test_the_socket_of_somebody_else(box, tmp_path):
    (tmp_path / "s").chmod(0)
    as_another = """
import os, sys
from scheduler import Client, Unavailable
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Client(sys.argv[1], connect_timeout_s=0.5)
except Unavailable as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", as_another, box.url], text=True)
    assert "Permission denied; only the user who runs edge_agent" in said


BLOCKED = """
import asyncio, importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in BLOCKED or name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"{name} is no package of the client")

BLOCKED = set()
ALLOWED = {*sys.stdlib_module_names, "scheduler", "numpy", "msgpack"}
sys.meta_path.insert(0, Blocker())
"""

LINUX = "ALLOWED.add('uvloop')"

# What Python has there in the places that the client may use.
WINDOWS = """
import functools, mmap, os, select, socket
BLOCKED |= {"fcntl", "grp", "pwd", "resource", "termios"}
socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # asyncio's own
for module, names in {
    socket: ("AF_UNIX", "MSG_DONTWAIT", "SO_PEERCRED", "SO_REUSEPORT", "TCP_NOTSENT_LOWAT",
             "TCP_USER_TIMEOUT", "recv_fds", "send_fds"),
    mmap: ("MADV_REMOVE", "MAP_SHARED", "PROT_READ", "PROT_WRITE"),
    os: ("O_CLOEXEC", "fork", "geteuid", "getuid", "memfd_create", "pidfd_open",
         "register_at_fork", "sched_getaffinity"),
    select: ("poll",),
}.items():
    for name in names:
        delattr(module, name)
"""

USED = """
import scheduler
from scheduler import *

inputs = {"image": [[1.0, 2.0]]}
with Client(sys.argv[1]) as client:
    assert client.infer("m", inputs, deadline_ms=60_000)
    assert list(client.map("m", [inputs], deadline_ms=60_000))
    client.cancel(client.submit("m", inputs, deadline_ms=60_000))

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        assert await client.infer("m", inputs, deadline_ms=60_000)

asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("system", [LINUX, WINDOWS], ids=["Linux", "Windows"])
def test_the_client_imports_nothing_else_than_the_document_says(box, system):
    program = BLOCKED + system + USED
    with box.on_tcp() as url:
        said = subprocess.check_output([sys.executable, "-c", program, url], text=True)
    assert said == "done\n"


def test_where_python_has_no_unix_sockets_a_box_is_named(box, monkeypatch):
    monkeypatch.delenv("LAXITY_URL", raising=False)
    monkeypatch.delattr("socket.AF_UNIX")
    for url in (None, box.url):
        with pytest.raises(AddressError, match="no unix sockets here: name a box by tcp://HOST:"):
            Client(url)


def test_a_client_says_that_it_can_not_be_sent_to_another_process(client):
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(client)
    for task in (client.task("a"), AsyncTask(client, "a")):
        with pytest.raises(TypeError, match=r"send its id, and use client\.task\(id\) there"):
            pickle.dumps(task)


def test_a_wrong_token_is_final(box):
    def check(peer, header):
        if header.get("token") != "secret":
            peer.refuse({"id": None}, "unauthorized", "the token is wrong")
        else:
            welcome(peer, header)

    box.on_hello = check
    with pytest.raises(Unauthorized, match="the token is wrong"):
        Client(box.url, token="guess")
    assert len(box.messages("hello")) == 1
    Client(box.url, token="secret").close()


@pytest.mark.parametrize("variable", [None, "secret\n"])
def test_the_line_end_of_a_file_is_no_part_of_a_token(box, monkeypatch, variable):
    if variable is not None:
        monkeypatch.setenv("LAXITY_TOKEN", variable)
    Client(box.url, token=None if variable else "secret\n").close()
    ((_, hello),) = box.messages("hello")
    assert hello["token"] == "secret"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_token_that_is_no_text_is_refused_unquoted(box, kind):
    with pytest.raises(InvalidInput, match=r"^a token is text, not bytes$"):
        kind(box.url, token=b"secret")
    assert not box.messages("hello")


def test_another_version_is_final(box):
    box.on_hello = lambda peer, header: peer.send({"t": "welcome", "v": 2, "site": ""})
    with pytest.raises(ProtocolError, match=r"speaks protocol version 2, this client .* 1"):
        Client(box.url)
    assert len(box.messages("hello")) == 1


def test_something_else_there_is_final(box):
    box.on_hello = lambda peer, header: peer.send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(
        ProtocolError, match=r"does not speak laxity's native protocol.*not .* http"
    ):
        Client(box.url)


@pytest.mark.parametrize("code", ["unavailable", "overloaded"])
def test_a_box_that_can_not_welcome_it_yet_is_asked_again(box, code):
    def not_yet(peer, header):
        box.on_hello = welcome
        peer.refuse({"id": None}, code)
        peer.transport.close()

    box.on_hello = not_yet
    with Client(box.url) as client:
        assert client.infer("digits", image(4), deadline_ms=MINUTE_MS)["image"].tolist() == [4]
    assert len(box.messages("hello")) == 2


def test_what_was_in_flight_is_sent_again(box, client):
    box.on_infer = ignore
    futures = [client.submit("digits", image(n), deadline_ms=MINUTE_MS) for n in range(5)]
    before = box.wait("infer", 5)
    box.on_infer = Peer.answer
    before[0][0].drop()
    assert [f.result()["image"].tolist() for f in futures] == [[n] for n in range(5)]
    after = box.wait("infer", 10)[5:]
    # What the client takes off for the way differs between two connections.
    assert all(0 < again["budget_ns"] < MINUTE_MS * 1_000_000 for _, again in after)


def test_a_box_that_restarts_gets_what_waited(box, client):
    box.stop()
    box.wait("lost")
    future = client.submit("digits", image(7), deadline_ms=MINUTE_MS)
    box.start()
    assert future.result()["image"].tolist() == [7]


def test_a_box_that_comes_back_may_call_the_only_input_otherwise(box, client):
    list(client.map("digits", [np.zeros(2)], deadline_ms=MINUTE_MS))
    comes_back_with_frames(box)
    client.infer("pair", image(1), deadline_ms=MINUTE_MS)  # by when the client knows of the loss
    list(client.map("digits", [np.zeros(2)], deadline_ms=MINUTE_MS))
    assert set(box.messages("infer")[-1][1]["tensors"]) == {"frame"}


def test_the_same_with_asyncio(box):
    async def main() -> None:
        async with AsyncClient(box.url) as client:
            for _ in range(2):
                mapped = client.map("digits", [np.zeros(2)], deadline_ms=MINUTE_MS)
                assert [result.batch async for result in mapped] == [1]
                if not box.messages("lost"):
                    await asyncio.to_thread(comes_back_with_frames, box)
                    await client.infer("pair", image(1), deadline_ms=MINUTE_MS)

    asyncio.run(main())
    assert set(box.messages("infer")[-1][1]["tensors"]) == {"frame"}


def comes_back_with_frames(box: FakeBox) -> None:
    box.stop()
    box.wait("lost")
    box.models = {"models": [{"name": "digits", "inputs": [{**IMAGE, "name": "frame"}]}]}
    box.start()


def test_what_never_reached_a_box_is_unavailable(box, client):
    client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    box.stop()

    def ended() -> str:
        try:
            client.infer("digits", image(1), deadline_ms=30)
        except DeadlineExpired:  # it was written to a connection whose loss was not known yet
            return ""
        except Unavailable as error:
            return str(error)
        raise AssertionError("nobody was there")

    eventually(lambda: "cannot reach the daemon at unix://" in ended())


def test_what_was_sent_and_lost_has_expired(box, client):
    box.on_infer = ignore
    future = client.submit("digits", image(1), deadline_ms=1_000)
    box.wait("infer")
    box.stop()
    with pytest.raises(DeadlineExpired, match=r"the connection to unix://.* was lost"):
        future.result()


def test_a_request_that_loses_every_connection_is_given_up(box, client):
    box.on_infer = lambda peer, header: peer.drop()
    with pytest.raises(Unavailable, match="lost 5 times"):
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    assert len(box.messages("infer")) == 5


def test_bytes_that_make_no_sense_end_what_was_in_flight(box, client):
    box.on_infer = lambda peer, header: peer.send_raw(b"\xff" * 64)
    with pytest.raises(ProtocolError, match="a frame header has 1 to"):
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    box.on_infer = Peer.answer
    client.infer("digits", image(1), deadline_ms=MINUTE_MS)


@pytest.mark.parametrize("offer", [None, float("inf"), float("nan")])
def test_a_counter_offer_that_makes_no_sense_ends_its_request_alone(box, client, offer):
    box.on_infer = lambda peer, header: peer.refuse(
        header, "infeasible", earliest_budget_ms={"cpu:0": offer}
    )
    refused = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
    with pytest.raises(ProtocolError, match="a counter-offer that does not follow the protocol"):
        refused.result(PATIENCE_S)
    assert not box.messages("lost")


def test_after_goodbye_new_requests_go_to_a_new_connection(box, client):
    box.on_infer = ignore
    old = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
    ((peer, header),) = box.wait("infer")
    peer.send({"t": "goodbye", "message": "restarting"})
    peer.send({"t": "later", "what": "an unknown type is skipped"})
    box.on_infer = Peer.answer
    while len(box.messages("hello")) < 2:
        assert client.infer("digits", image(2), deadline_ms=MINUTE_MS)["image"].tolist() == [2]
    assert not old.done()
    peer.answer(header)
    assert old.result()["image"].tolist() == [1]
    ((lost, _),) = box.wait("lost")
    assert lost is peer


def test_a_request_that_crossed_the_goodbye_is_sent_again(box, client):
    def drain(peer, header):
        box.on_infer = Peer.answer
        peer.send({"t": "goodbye", "message": "restarting"})
        peer.refuse(header, "unavailable", "draining")

    box.on_infer = drain
    assert client.infer("digits", image(3), deadline_ms=MINUTE_MS)["image"].tolist() == [3]
    assert len(box.messages("hello")) == 2


def test_a_box_that_greets_and_drops_is_not_the_end(box, client):
    def greet_and_drop(peer, header):
        welcome(peer, header)
        if len(box.messages("hello")) > 3:
            box.on_hello = welcome
        peer.transport.close()

    box.on_hello = greet_and_drop
    box.peers[0].drop()
    result = client.infer("digits", image(4), deadline_ms=MINUTE_MS)
    assert result["image"].tolist() == [4]


def test_a_box_that_greets_and_drains_is_not_the_end(box, client):
    def greet_and_drain(peer, header):
        box.on_hello = welcome
        with peer.together():
            welcome(peer, header)
            peer.send({"t": "goodbye", "message": "restarting"})

    box.on_hello = greet_and_drain
    box.peers[0].send({"t": "goodbye", "message": "restarting"})
    box.wait("lost")
    result = client.infer("digits", image(4), deadline_ms=MINUTE_MS)
    assert result["image"].tolist() == [4]
    assert len(box.messages("hello")) == 3


def test_it_speaks_tcp(box):
    with box.on_tcp() as url, Client(url) as client:
        assert client.infer("digits", image(1), deadline_ms=MINUTE_MS)["image"].tolist() == [1]


def test_threads_share_a_client_that_loses_its_connection(box, client):
    def work(thread: int) -> list[float]:
        futures = [
            client.submit("digits", image(thread * 1000 + n), deadline_ms=MINUTE_MS)
            for n in range(100)
        ]
        box.peers[-1].drop()
        return [f.result()["image"].item() - thread * 1000 - n for n, f in enumerate(futures)]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(4)):
            assert results == [0.0] * 100


# From Python 3.12 on: a fork beside other threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_is_told_to_make_a_client_of_its_own(box, client):
    box.on_infer = ignore
    pending = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
    ((peer, asked),) = box.wait("infer")
    box.on_infer = Peer.answer

    def child(pipe: Pipe) -> None:
        submit = partial(client.submit, "digits", image(1), deadline_ms=MINUTE_MS)
        for ask in (submit, client.status, pending.result):
            try:
                ask()
            except RuntimeError as error:
                pipe.send(str(error))
        client.close()
        with Client(box.url) as own:
            pipe.send(own.infer("digits", image(2), deadline_ms=MINUTE_MS)["image"].item())

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    theirs.close()
    assert ["make one in each process" in ours.recv() for _ in range(3)] == [True] * 3
    assert ours.recv() == 2
    process.join()
    peer.answer(asked)
    assert pending.result()["image"].item() == 1
    assert client.infer("digits", image(3), deadline_ms=MINUTE_MS)["image"].item() == 3


def test_a_token_that_is_good_again_is_shown_again(box, monkeypatch):
    monkeypatch.setattr(dialer, "_REFUSED_NS", 0)
    with Client(box.url) as client:
        assert client.infer("digits", image(1), deadline_ms=MINUTE_MS)["image"].item() == 1
        greeted = len(box.messages("hello"))
        box.on_hello = lambda peer, _: peer.refuse({"id": None}, "unauthorized", "wrong token")
        box.peers[-1].drop()
        with pytest.raises(Unauthorized, match="wrong token"):
            client.infer("digits", image(2), deadline_ms=MINUTE_MS)
        box.on_hello = welcome
        assert client.infer("digits", image(3), deadline_ms=MINUTE_MS)["image"].item() == 3
        assert len(box.messages("hello")) == greeted + 2


def test_an_error_that_is_raised_for_all_gathers_nothing(box):
    box.on_hello = lambda peer, header: (
        welcome(peer, header)
        if not box.messages("infer")
        else peer.refuse({"id": None}, "unauthorized", "the token was changed")
    )
    box.on_infer = lambda peer, header: peer.drop()
    depths, errors = set(), []
    with Client(box.url) as client:
        for _ in range(5):
            with pytest.raises(Unauthorized, match="was changed") as raised:
                client.infer("digits", image(1), deadline_ms=MINUTE_MS)
            errors.append(raised.value)
            depths.add(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(map(id, errors))) == 5
    assert len(depths) == 1


def test_what_can_not_connect_leaves_nothing_open(box):
    tried = """
import os, sys
from scheduler import Client, LaxityError

def open_after(*urls):
    for url in urls:
        try:
            Client(url, token="\\udcff", connect_timeout_s=0.5)  # no greeting can say that
        except LaxityError as error:
            print(type(error).__name__, error)
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {name: os.readlink(name) for name in names if os.path.lexists(name)}

before = open_after(sys.argv[1])  # what a process opens but once is open now
assert (after := open_after("here", "tcp://host", 5, sys.argv[1])) == before, (before, after)
"""
    said = subprocess.check_output([sys.executable, "-c", tried, box.url], text=True).splitlines()
    kinds = ["Unavailable", "AddressError", "AddressError", "AddressError", "Unavailable"]
    assert [line.split()[0] for line in said] == kinds
    assert "surrogates not allowed" in said[0]
    assert "surrogates not allowed" in said[-1]


def test_a_greeting_that_fails_leaves_no_connection(box):
    async def main() -> None:
        exchange = Exchange(asyncio.get_running_loop(), box.url, None)
        address = parse_address(box.url)
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            await connect(address, "\udcff", exchange.on_frame, exchange.on_lost)
        await asyncio.to_thread(box.wait, "lost")

    asyncio.run(main())


def test_a_connection_that_opens_after_the_end_is_closed(box):
    async def main() -> None:
        exchange = Exchange(asyncio.get_running_loop(), box.url, None)
        exchange.close()
        address = parse_address(box.url)
        connection = await connect(address, None, exchange.on_frame, exchange.on_lost)
        exchange.on_open(connection)
        await exchange.wait_closed()
        with pytest.raises(ConnectionResetError):  # And not that it did not close in time.
            connection.check()

    asyncio.run(main())


def test_what_is_cancelled_as_another_ends_unsent_is_not_sent(box):
    """A door's request ends with its first item, which may be as they wait for a connection."""

    class CancelsTheOther(asyncio.Future[Any]):
        exchange: Exchange

        def set_exception(self, exception: Any, /) -> None:
            self.exchange.cancel(2)

    async def main() -> None:
        first, other, asked = CancelsTheOther(), asyncio.Future[Any](), asyncio.Future[Any]()
        exchange = first.exchange = Exchange(asyncio.get_running_loop(), box.url, None)
        exchange.start(
            infer_call(1, first, "\udcff", image(1), MINUTE_MS),
            infer_call(2, other, "digits", image(2), MINUTE_MS),
            question_call(3, asked, "models", 5.0),
        )
        await asked
        assert [header["t"] for _, header in box.seen] == ["hello", "models"]
        exchange.close()

    asyncio.run(main())


def answer_slowly(peer: Peer, header: wire.Header) -> None:
    """As one whose own time was 5 s less than it was, which the way must have taken."""
    peer.answer(header, timing=[1, 2, 3, -5_000_000_000])


def kept_for_the_way_ns(box, client):
    before = len(box.messages("infer"))
    client.submit("digits", image(1), deadline_ms=MINUTE_MS)
    _, header = box.wait("infer", before + 1)[before]
    return MINUTE_MS * 1_000_000 - header["budget_ns"]


def test_a_way_that_was_slow_is_not_the_last_word_where_all_is_refused(box, client):
    box.on_infer = answer_slowly
    for _ in range(50):
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    assert kept_for_the_way_ns(box, client) > 4e9
    box.on_infer = partial(Peer.refuse, code="infeasible")
    for _ in range(200):
        with pytest.raises(DeadlineInfeasible):
            client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    assert kept_for_the_way_ns(box, client) < 2e9


def stop_reading(box):
    """As many large requests as are sure to fill the way; what lets the box read on."""
    ((peer, _),) = box.wait("hello")
    box.run(on_loop(peer.transport.pause_reading))
    return [{"image": np.zeros(200_000, np.float32)}] * 8, peer.transport.resume_reading


async def on_loop(action):
    action()


def test_what_waits_behind_others_leaves_with_what_is_left_of_its_budget_or_not_at_all(box, client):
    large, read_on = stop_reading(box)
    futures = [client.submit("digits", each, deadline_ms=MINUTE_MS) for each in large]
    futures.append(client.submit("digits", image(1), deadline_ms=MINUTE_MS, variant="behind"))
    with pytest.raises(DeadlineExpired, match=r"waited here, because unix://.* has not yet taken"):
        client.infer("digits", image(1), deadline_ms=200, variant="expired")
    box.run(on_loop(read_on))
    for future in futures:
        future.result(PATIENCE_S)
    client.infer("digits", image(1), deadline_ms=MINUTE_MS)
    (behind,) = [header for _, header in box.messages("infer") if "variant" in header]
    assert behind["variant"] == "behind"
    assert behind["budget_ns"] < (MINUTE_MS - 200) * 1_000_000


def test_what_waits_behind_others_goes_to_the_next_connection(box, client):
    large, _ = stop_reading(box)
    futures = [client.submit("digits", each, deadline_ms=MINUTE_MS) for each in large]
    box.peers[0].drop()
    for future in futures:
        assert future.result(PATIENCE_S)["image"].size == 200_000
