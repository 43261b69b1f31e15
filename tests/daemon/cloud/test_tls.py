"""Servers behind TLS: whom they are taken for, and whom they take the box for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from scheduler.config.problems import ConfigError
from scheduler.daemon.cloud.mixed_up import mixed_up
from tests.daemon.cloud.boxes import box_of, numbers
from tests.daemon.cloud.far_server import far_server
from tests.daemon.cloud.test_http import HttpServer
from tests.waiting import PATIENCE_S


class Certificates:
    """A CA's files, and the server that it vouches for."""

    def __init__(self, folder: Path):
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "box.pem", "box.key"))
        self.authority.cert_pem.write_to_path(self.ca)
        box = self.authority.issue_cert("box.example")
        box.cert_chain_pems[0].write_to_path(self.cert)
        box.private_key_pem.write_to_path(self.key)

    def server(self, mutual: bool) -> grpc.ServerCredentials:
        issued = self.authority.issue_cert("localhost")
        pair = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
        return grpc.ssl_server_credentials([pair], self.authority.cert_pem.bytes(), mutual)


def outcome_of(folder: Path, mutual: bool, tls: dict[str, Any], files: Certificates) -> str:
    """What becomes of a box that uses such a server."""

    async def run() -> str:
        async with far_server(credentials=files.server(mutual)) as far:
            url = f"grpcs://localhost:{far.port}"
            async with box_of(url, folder, tls=tls) as box:
                texts = ("starting", "looking at the server")
                told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
                await box.until(lambda: told() not in texts)
                if box.is_up:
                    assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4
                return str(told())

    return asyncio.run(run())


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_server_whose_authority_is_known_is_used(tmp_path: Path, files: Certificates):
    assert outcome_of(tmp_path, False, {"ca": files.ca}, files) == "ready"


def test_a_server_that_asks_for_a_certificate_gets_it(tmp_path: Path, files: Certificates):
    tls = {"ca": files.ca, "cert": files.cert, "key": files.key}
    assert outcome_of(tmp_path, True, tls, files) == "ready"


def test_a_server_of_an_unknown_authority_is_not_spoken_to(tmp_path: Path, files: Certificates):
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    assert "UNAVAILABLE" in outcome_of(tmp_path, False, {"ca": stranger}, files)


@asynccontextmanager
async def server_behind(
    over: str, files: Certificates, issued: trustme.LeafCert | None = None
) -> AsyncIterator[str]:
    issued = issued or files.authority.issue_cert("localhost")
    if over == "grpc":
        async with far_server() as far:
            yield f"grpc://localhost:{far.port}"
        return
    if over == "grpcs":
        pair = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
        async with far_server(credentials=grpc.ssl_server_credentials([pair])) as far:
            yield f"grpcs://localhost:{far.port}"
        return
    context, server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), HttpServer()
    issued.configure_cert(context)
    yield await server.start(None if over == "http" else context)
    await server.stop()


@pytest.mark.parametrize("over", ["grpcs", "https"])
@pytest.mark.parametrize(
    ("host", "days", "known", "said"),
    [
        ("localhost", 1, False, "; tls.ca of this cloud should hold the certificate of the CA"),
        ("localhost", -1, True, "certificate has expired; it has to be renewed there, or a clock"),
        ("other.example", 1, True, "; the url needs a name or address that is in its certificate"),
    ],
)
def test_why_a_certificate_is_not_accepted_is_told_with_the_remedy(
    tmp_path: Path, files: Certificates, over: str, host: str, days: int, known: bool, said: str
):
    until = datetime.now(timezone.utc) + timedelta(days=days)
    issued = files.authority.issue_cert(host, not_after=until)
    if not known:
        trustme.CA().cert_pem.write_to_path(files.ca)

    async def run() -> str:
        tls = {"ca": files.ca}
        async with server_behind(over, files, issued) as url, box_of(url, tmp_path, tls=tls) as box:
            told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
            await box.until(lambda: told() not in ("starting", "looking at the server"))
            return str(told())

    told = asyncio.run(run())
    assert "its certificate is not accepted: " in told
    assert said in told


@pytest.mark.parametrize("spoken", ["http", "https", "grpc", "grpcs"])
@pytest.mark.parametrize("written", ["http", "https", "grpc", "grpcs"])
def test_a_scheme_that_the_server_does_not_speak_is_corrected(
    tmp_path: Path,
    files: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    spoken: str,
):
    monkeypatch.setattr("scheduler.daemon.cloud.mixed_up.PATIENCE_S", PATIENCE_S)

    async def run() -> str:
        server = server_behind(spoken, files)
        async with server as url:
            url = f"{written}://{url.partition('://')[2]}"
            url = url if written.startswith("http") else url.removesuffix("/base")
            async with box_of(url, tmp_path, tls={"ca": files.ca}) as box:
                told = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
                await box.until(lambda: told() not in ("starting", "looking at the server"))
                return str(told())

    told = asyncio.run(run())
    if written == spoken:
        assert told == "ready"
    else:
        correction = f"it does not speak {written}:// but {spoken}://, so write that in its url ("
        assert told.startswith(correction)


def test_what_speaks_none_of_these_is_not_corrected(tmp_path: Path):
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> str:
        async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await mixed_up(f"http://127.0.0.1:{port}")

    assert asyncio.run(run()) == ""


@pytest.mark.parametrize("over", ["grpcs", "https"])
def test_an_authority_that_is_renewed_counts_for_the_next_connection(
    tmp_path: Path, files: Certificates, over: str
):
    trusted = tmp_path / "trusted.pem"
    trustme.CA().cert_pem.write_to_path(trusted)

    async def run() -> None:
        tls = {"ca": trusted}
        async with server_behind(over, files) as url, box_of(url, tmp_path, tls=tls) as box:
            why = lambda: box.driver.status()["targets"][0]["progress"]["text"]  # noqa: E731
            await box.until(lambda: why() not in ("starting", "looking at the server"))
            assert not box.is_up
            trusted.write_text("half of a certif")
            await asyncio.sleep(0.2)  # until it has been dialled with that file
            trusted.write_bytes(files.ca.read_bytes())
            await box.until(lambda: box.is_up)
            assert numbers(await box.ask(2.0, 20_000)) == [4.0] * 4

    asyncio.run(run())


def test_certificates_that_can_not_be_read_are_said_at_the_start(tmp_path: Path):
    async def run() -> None:
        async with box_of("grpcs://localhost:1", tmp_path, tls={"ca": tmp_path / "none.pem"}):
            pass

    with pytest.raises(ConfigError, match=r"cloud 'far': tls: .*none.pem: can't be read"):
        asyncio.run(run())


def test_a_token_that_others_can_read_is_refused(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o644)

    async def run() -> None:
        async with box_of("grpcs://localhost:1", tmp_path, token_file=token):
            pass

    with pytest.raises(ConfigError, match="chmod 600"):
        asyncio.run(run())
