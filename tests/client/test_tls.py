"""The messages of a client for each way in which TLS can fail, with the remedy."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
import uvloop
from cryptography.hazmat.primitives import serialization

from scheduler import AsyncClient, Client, Unavailable
from scheduler.address import parse_address
from scheduler.client.connection import connect
from scheduler.client.large_calls import LARGE_BYTES
from scheduler.client.tls import Tls, TlsFailure
from tests.client.test_large_calls import welcome_large
from tests.fake_box import FakeBox, Peer

VARIABLES = ("LAXITY_CA", "LAXITY_CERT", "LAXITY_KEY")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of two CAs, and certificates that each has signed, with their keys."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    past = datetime.now(timezone.utc) - timedelta(days=1)
    for name in ("ours", "another"):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / f"{name}.pem")
        for kind, host, until in (
            ("box", "127.0.0.1", None),
            ("named", "box.example", None),
            ("old", "127.0.0.1", past),
            ("client", "arm-7.example", None),
        ):
            pair = authority.issue_cert(host, not_after=until)
            pair.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}-{kind}.pem")
    (folder / "junk.pem").write_text("no certificate")
    return folder


class Listening(socket.socket):
    """A listening socket that knows the connections it has accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[socket.socket] = []
        self.bind(("127.0.0.1", 0))

    def accept(self) -> tuple[socket.socket, Any]:
        near, address = super().accept()
        self.accepted.append(near)
        return near, address


@pytest.fixture
def serve(box: FakeBox, files: Path) -> Iterator[Callable[..., str]]:
    """Makes the box listen with a certificate, and returns its address.

    In the end it waits until each connection is closed, also one whose handshake failed: `FakeBox`
    knows only those that greeted it.
    """
    servers: list[tuple[asyncio.Server, Listening]] = []

    def listen(cert: str | None, *, asks: bool = False) -> str:
        context = None
        if cert is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files / cert)
            if asks:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(files / "ours.pem")

        async def open_() -> str:
            made = Plain if context is None else partial(Peer, box)
            listening = Listening()
            server = await box.loop.create_server(made, sock=listening, ssl=context)
            servers.append((server, listening))
            return f"tls://127.0.0.1:{listening.getsockname()[1]}"

        url: str = box.run(open_())
        return url

    async def close() -> None:
        for server, listening in servers:
            server.close()
            for near in listening.accepted:
                with suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)
            while any(near.fileno() >= 0 for near in listening.accepted):
                await asyncio.sleep(0.001)

    yield listen
    box.run(close())


@pytest.fixture
def told(files: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The reasons why there is no connection, on asyncio's loop and on that of `Client`."""

    def ask(url: str, **named: str) -> list[str]:
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        for variable, file in named.items():
            monkeypatch.setenv(f"LAXITY_{variable}", str(files / file))
        said = []
        for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
            try:
                with pytest.raises(TlsFailure) as failed:
                    loop.run_until_complete(
                        connect(parse_address(url), None, lambda *_: None, lambda *_: None)
                    )
                said.append(str(failed.value))
            finally:
                loop.close()
        return said

    return ask


@pytest.mark.parametrize(
    ("cert", "named", "said"),
    [
        ("ours-box.pem", {}, "set LAXITY_CA to the file with the certificate of the CA that"),
        (
            "ours-box.pem",
            {"CA": "another.pem"},
            "/another.pem must contain the certificate of the CA",
        ),
        ("ours-named.pem", {"CA": "ours.pem"}, "use a name or address that is in its certificate"),
        ("ours-old.pem", {"CA": "ours.pem"}, "expired; renew the box's certificate (tls.cert)"),
        ("ours-box.pem", {"CA": "none.pem"}, "none.pem can't be used: No such file or directory"),
        ("ours-box.pem", {"CA": "junk.pem"}, "junk.pem can't be used: "),
        ("ours-box.pem", {"CERT": "none.pem"}, "none.pem can't be used: No such file or directory"),
        (
            "ours-box.pem",
            {"CERT": "ours-client.pem", "KEY": "another-client.pem"},
            "another-client.pem can't be used: ",
        ),
        (None, {"CA": "ours.pem"}, "does not speak TLS: is it a tcp:// address?"),
    ],
)
def test_a_box_that_is_not_believed(serve, told, cert, named, said) -> None:
    for text in told(serve(cert), **named):
        assert said in text


def test_a_box_that_expects_tls(serve, told) -> None:
    for text in told(serve("ours-box.pem").replace("tls:", "tcp:")):
        assert text.endswith("if it speaks TLS there, its address begins with tls://")


leaks_in_python_3_10 = pytest.mark.filterwarnings(
    "ignore:.*_SSLProtocolTransport:pytest.PytestUnraisableExceptionWarning"
)
"""There asyncio does not close the transport of a connection that the server closes in between."""


@leaks_in_python_3_10
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "set LAXITY_CERT to the file of a certificate signed by a CA in its tls.client_ca"),
        ({"CERT": "another-client.pem"}, "-client.pem must be signed by a CA in its tls.client_ca"),
    ],
)
def test_a_box_that_does_not_believe(serve, told, own, said) -> None:
    for text in told(serve("ours-box.pem", asks=True), CA="ours.pem", **own):
        assert text.startswith("it closed the connection before its welcome; if it requires a")
        assert said in text


@leaks_in_python_3_10
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "it requires a client certificate (TLSV13_ALERT_CERTIFICATE_REQUIRED): set LAXI"),
        ({"CERT": "another-client.pem"}, "(TLSV1_ALERT_UNKNOWN_CA): LAXITY_CERT="),
    ],
)
def test_a_proxy_that_does_not_believe_and_says_so(told, files, own, said) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "ours-box.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files / "ours.pem")

    def turn_away() -> None:
        for _ in range(2):
            raw, _ = listening.accept()
            near = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            with near, suppress(OSError):
                with suppress(ssl.SSLError):
                    near.do_handshake()
                while os.read(near.fileno(), 4096):  # unread bytes would discard the alert
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=turn_away)
        thread.start()
        found = told(f"tls://127.0.0.1:{listening.getsockname()[1]}", CA="ours.pem", **own)
        thread.join()
    for text in found:
        assert said in text


class Plain(asyncio.Protocol):
    """A server without TLS."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_client_says_it_and_connects_once_it_is_mended(serve, files, monkeypatch) -> None:
    url = serve("ours-box.pem", asks=True)
    monkeypatch.setenv("LAXITY_CA", str(files / "none.pem"))
    with pytest.raises(
        Unavailable, match=rf"daemon at {url}: LAXITY_CA=.* such file or directory$"
    ):
        Client(url, connect_timeout_s=0.4)
    monkeypatch.setenv("LAXITY_CA", str(files / "ours.pem"))
    monkeypatch.setenv("LAXITY_CERT", str(files / "ours-client.pem"))
    Client(url).close()


@pytest.mark.parametrize(
    ("cert", "named", "said"),
    [
        ("ours-box.pem", {"ca": "none.pem"}, ": ca=.*/none.pem can't be used: No such file"),
        ("ours-box.pem", {"ca": "another.pem"}, "; ca=.*/another.pem must contain the certificate"),
        (
            "ours-box.pem",
            {"ca": "ours.pem", "cert": "junk.pem", "key": "ours-client.pem"},
            ": cert=.*/junk.pem with key=.*/ours-client.pem can't be used: ",
        ),
        (
            "ours-box.pem",
            {"ca": "ours.pem", "cert": "another-client.pem"},
            ", cert=.*/another-client.pem must be signed by a CA in its tls.client_ca$",
        ),
        ("another-box.pem", {}, "; LAXITY_CA=.*/ours.pem must contain the certificate"),
    ],
)
@leaks_in_python_3_10
def test_an_argument_stands_in_place_of_its_variable(
    serve, files, monkeypatch, cert, named, said
) -> None:
    """The error names whichever was used."""
    url = serve(cert, asks=True)
    for variable, file in zip(VARIABLES, ("ours", "ours-client", "ours-client"), strict=True):
        monkeypatch.setenv(variable, str(files / f"{file}.pem"))
    paths = {argument: files / file for argument, file in named.items()}
    assert re.search(said, _why(lambda wait_s: Client(url, connect_timeout_s=wait_s, **paths)))

    async def connect_once(wait_s: float) -> None:
        await AsyncClient(url, **paths).connect(wait_s)

    assert re.search(said, _why(lambda wait_s: asyncio.run(connect_once(wait_s))))


def _why(connect: Callable[[float], object]) -> str:
    """Why there is no connection; with time for a handshake on a busy machine."""
    for wait_s in (0.4, 10.0):
        with pytest.raises(Unavailable) as failed:
            connect(wait_s)
        if "no answer yet" not in str(failed.value):
            break
    return str(failed.value)


def test_a_client_needs_no_variables(serve, box, files, monkeypatch) -> None:
    """And one of a certificate's key is not taken for that of another certificate."""
    monkeypatch.setenv("LAXITY_CERT", str(files / "none.pem"))
    monkeypatch.setenv("LAXITY_KEY", str(files / "another-client.pem"))
    own = {"ca": files / "ours.pem", "cert": str(files / "ours-client.pem")}
    box.on_hello = welcome_large
    url = serve("ours-box.pem", asks=True)
    with Client(url, **own) as client:
        large = np.zeros(LARGE_BYTES + 1, np.uint8)  # goes over a connection of its own
        assert np.array_equal(client.infer("m", {"x": large}, deadline_s=60)["x"], large)

    async def ask() -> None:
        async with AsyncClient(url, **own, key=files / "ours-client.pem") as client:
            await client.infer("m", {"x": np.zeros(1)}, deadline_s=60)

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_would_have_no_effect_is_refused(box, kind) -> None:
    with pytest.raises(ValueError, match=r"^ca= is for tls://HOST:PORT; what tcp://h:1 carries"):
        kind("tcp://h:1", ca="ca.pem")
    with pytest.raises(ValueError, match=r"^key= is the key of a certificate, which cert= should"):
        kind("tls://h:1", ca="ca.pem", key="key.pem")
    for name in ("ca", "cert", "key"):  # such as a setting that is missing elsewhere
        with pytest.raises(ValueError, match=rf"^{name}= is empty; it should be a file's path"):
            kind("tls://h:1", **{name: ""})
    assert kind(box.url, ca="ca.pem").url == box.url  # nothing leaves the machine


def test_a_key_with_a_password_is_refused_rather_than_the_terminal_asked(files, tmp_path) -> None:
    whole = (files / "ours-client.pem").read_bytes()
    locked = serialization.load_pem_private_key(whole, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "key.pem").write_bytes(locked)
    with pytest.raises(TlsFailure, match=f"with key={tmp_path}/key.pem can't be used"):
        Tls(cert=str(files / "ours-client.pem"), key=str(tmp_path / "key.pem")).context()
