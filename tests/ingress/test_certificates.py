"""Certificates of a door: each way in which they can't be used names the file and its key."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError
from scheduler.ingress.certificates import DoorContext, server_context


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


class Caller:
    """A client that believes everything, and may show a certificate and resume a session.

    Attributes:
        context: Its TLS context.
        session: The session to resume; the last one after a handshake.
    """

    def __init__(self, shown: trustme.LeafCert | None = None, version: str = "TLSv1_3") -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.context.maximum_version = ssl.TLSVersion[version]
        self.session: ssl.SSLSession | None = None
        if shown is not None:
            shown.configure_cert(self.context)

    def handshake(self, server: ssl.SSLContext) -> str:
        """A handshake with a server; the certificate that it shows."""
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = self.context.wrap_bio(
            back, there, server_hostname="own.example", session=self.session
        )
        ends = own, server.wrap_bio(there, back, server_side=True)
        for _ in range(5):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        with suppress(ssl.SSLWantReadError):
            own.read()  # what TLS 1.3 sends after the handshake
        self.session = own.session
        shown = own.getpeercert(binary_form=True)
        assert shown is not None
        return ssl.DER_cert_to_PEM_cert(shown)


def test_a_new_certificate_without_its_key_takes_nothing_from_the_old_one(files, tmp_path):
    copied = {name: tmp_path / name for name in ("own.pem", "own.key")}
    for name, copy in copied.items():
        copy.write_bytes((files / name).read_bytes())
    tls = TlsConfig.model_validate(
        {"cert": "own.pem", "key": "own.key"}, context={"base": tmp_path}
    )
    context = DoorContext(tls)
    before = Caller().handshake(context)
    copied["own.pem"].write_bytes((files / "other.pem").read_bytes())
    with pytest.raises(ConfigError, match="its own key"):
        context.read_again(tls)
    assert Caller().handshake(context) == before
    copied["own.key"].write_bytes((files / "other.key").read_bytes())
    context.read_again(tls)
    assert Caller().handshake(context) != before


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_who_was_signed_by_an_authority_that_was_removed_is_refused(files, tmp_path, version):
    ours, another = trustme.CA(), trustme.CA()
    trusted = tmp_path / "ca.pem"
    ours.cert_pem.write_to_path(trusted)
    tls = TlsConfig.model_validate(
        {"cert": "own.pem", "key": "own.key", "client_ca": str(trusted)}, context={"base": files}
    )
    context = DoorContext(tls)
    known = Caller(ours.issue_cert("arm-7.example"), version)
    known.handshake(context)
    another.cert_pem.write_to_path(trusted)
    context.read_again(tls)
    for session in (known.session, None):
        known.session = session
        with pytest.raises(ssl.SSLError):
            known.handshake(context)
    Caller(another.issue_cert("arm-8.example"), version).handshake(context)


def test_when_a_chain_expires_is_known_from_its_files(files, tmp_path):
    soon = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=3)
    pair = trustme.CA().issue_cert("box.example", not_after=soon)
    pair.private_key_pem.write_to_path(tmp_path / "key")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    context = DoorContext(TlsConfig(cert=files / "own.pem", key=files / "own.key"))
    assert context.expires_unix_s > soon.timestamp()
    context.read_again(TlsConfig(cert=tmp_path / "cert", key=tmp_path / "key"))
    assert context.expires_unix_s == soon.timestamp()
