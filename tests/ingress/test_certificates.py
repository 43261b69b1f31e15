"""Certificates of a door: each way in which they can't be used names the file and its key."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError
from scheduler.ingress.certificates import load_certificate, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    for name in ("own", "other"):
        pair = authority.issue_cert(f"{name}.example")
        pair.private_key_pem.write_to_path(folder / f"{name}.key")
        pair.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    key = serialization.load_pem_private_key((folder / "own.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (folder / "locked.key").write_bytes(locked)
    (folder / "junk").write_text("no certificate")
    return folder


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "told"),
    [
        ("no", "own.key", None, "no: tls.cert: can't be read: No such file or directory"),
        ("own.pem", "no", None, "no: tls.key: can't be read: No such file or directory"),
        ("own.pem", "own.key", "no", "no: tls.client_ca: can't be read: No such file"),
        ("own.pem", "own.key", "junk", "junk: tls.client_ca: should be certificates in PEM"),
        ("junk", "own.key", None, "junk: tls.cert: should be a certificate in PEM, and "),
        ("own.pem", "junk", None, "own.pem: tls.cert: should be a certificate in PEM, and "),
        ("own.pem", "other.key", None, "other.key its own key without a password"),
        ("own.pem", "locked.key", None, "locked.key its own key without a password"),
    ],
)
def test_what_can_not_be_used_is_named(files, cert, key, client_ca, told):
    tls = TlsConfig.model_validate(
        {"cert": cert, "key": key, "client_ca": client_ca}, context={"base": files}
    )
    with pytest.raises(ConfigError) as refused:
        server_context(tls)
    assert str(refused.value).startswith(str(files))
    assert told in str(refused.value)


def test_a_certificate_and_its_key_are_taken(files):
    tls = TlsConfig.model_validate({"cert": "own.pem", "key": "own.key"}, context={"base": files})
    server_context(tls)


def handshake(server: ssl.SSLContext) -> str:
    """The common way of a client that believes everything; the certificate that it is shown."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        trusting.wrap_bio(back, there, server_hostname="own.example"),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(5):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)


def test_a_new_certificate_without_its_key_takes_nothing_from_the_old_one(files):
    own, torn = (
        TlsConfig.model_validate({"cert": cert, "key": "own.key"}, context={"base": files})
        for cert in ("own.pem", "other.pem")
    )
    context = server_context(own)
    before = handshake(context)
    with pytest.raises(ConfigError, match="its own key"):
        load_certificate(context, torn)
    assert handshake(context) == before
