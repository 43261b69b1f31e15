"""What is a refusal of another box, and what passes by itself."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from scheduler.address import Address
from scheduler.client.asking import FIRST_ID, Reply, ask
from scheduler.client.connection import Connection
from scheduler.client.tls import TlsFailure
from scheduler.daemon.neighbours.refusals import is_refusal
from scheduler.errors import LaxityError


async def why_not(context: ssl.SSLContext | None) -> Exception:
    """Why a box can't be asked that is there with these certificates; without any it hangs up."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    def introduction(_: Connection) -> dict[str, object]:
        raise AssertionError("it was let in")

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(TlsFailure) as failed:
            await ask(Address("tls", host="127.0.0.1", port=port), None, introduction)
    finally:
        server.close()
        await server.wait_closed()
    return failed.value


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    """Certificates of a box, by an authority other than the one that is trusted."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("LAXITY_CA", str(tmp_path / "ca.pem"))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(made)
    return made


def test_a_certificate_that_is_not_accepted_stays_so(context: ssl.SSLContext) -> None:
    error = asyncio.run(why_not(context))
    assert "its certificate is not accepted" in str(error)
    assert is_refusal(error)


def test_a_box_that_just_hangs_up_may_be_about_to_end(context: ssl.SSLContext) -> None:
    error = asyncio.run(why_not(None))
    assert "closed the connection before its welcome" in str(error)
    assert not is_refusal(error)


def test_a_file_of_certificates_that_is_missing_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAXITY_CA", "/nowhere/ca.pem")
    assert is_refusal(asyncio.run(why_not(None)))


@pytest.mark.parametrize("code", ["forbidden", "cancelled", "of a later version", None])
def test_a_box_that_says_no_has_refused_whatever_it_calls_that(code: str | None) -> None:
    async def answered() -> None:
        reply = Reply()
        reply.take({"t": "error", "id": FIRST_ID, "code": code, "message": "no"})
        await reply.answer()

    with pytest.raises(LaxityError, match=r"^no$") as refused:
        asyncio.run(answered())
    assert is_refusal(refused.value)
