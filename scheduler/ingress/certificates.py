"""The certificates of the doors, and the names in client certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError, Problem

HANDSHAKE_S = 5.0
"""How long a client may take for its TLS handshake, and over gRPC for that of HTTP/2 too."""

DISTRUSTED = "the authorities that may sign client certificates (tls.client_ca) are others by now"
"""Why a connection is closed whose client was let in by an authority that has been removed."""

_PEM = re.compile(rb"-----BEGIN ([^-]+)-----(.*?)-----END \1-----", re.DOTALL)


class DoorContext(ssl.SSLContext):
    """The TLS context of a door, whose files can be read again while it serves.

    Each reading makes a new context for the handshakes from then on: one that exists can forget
    neither an authority nor the sessions that clients resume without a certificate.

    Args:
        tls: The certificate files.
        alpn: The registered names of the protocols that the door speaks.

    Attributes:
        expires_unix_s: When the first certificate of the chain expires.

    Raises:
        ConfigError: A file can't be read, or is not what it should be.
    """

    def __new__(cls, tls: TlsConfig, alpn: Sequence[str] = ()) -> DoorContext:
        """A context for a server."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: TlsConfig, alpn: Sequence[str] = ()) -> None:
        """Reads the files."""
        self._alpn = alpn
        self._authorities: frozenset[bytes] = frozenset()
        self._trusted: WeakSet[ssl.SSLContext] = WeakSet()
        self.read_again(tls)

    def read_again(self, tls: TlsConfig) -> None:
        """Reads the files again, which may have other names now.

        Raises:
            ConfigError: A file can't be read, or is not what it should be. Handshakes then keep
                using what was read before.
        """
        authorities = authorities_of(tls)
        self._latest = server_context(tls, self._alpn)
        if not self._authorities <= authorities:
            self._trusted.clear()
        self._authorities = authorities
        self._trusted.add(self._latest)
        self.expires_unix_s = _expiry_unix_s(tls.cert)

    def distrusts(self, connection: ssl.SSLObject | None) -> bool:
        """Whether a client was let in when an authority counted that has been removed since.

        The authority may be another one than that of the client, which has to show its certificate
        again: what a connection tells of it does not suffice to check it.
        """
        return connection is not None and connection.context not in self._trusted

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begins a handshake; event loops call this for each connection."""
        return self._latest.wrap_bio(*args, **options)


def authorities_of(tls: TlsConfig) -> frozenset[bytes]:
    """The certificates of the authorities that may sign client certificates, as in the file.

    Raises:
        ConfigError: The file can't be read.
    """
    if tls.client_ca is None:
        return frozenset()
    try:
        found = _PEM.findall(tls.client_ca.read_bytes())
    except OSError as error:
        raise _unusable(tls.client_ca, "tls.client_ca", error) from None
    return frozenset(b"".join(content.split()) for _, content in found)


def server_context(tls: TlsConfig, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """A TLS context for a server, with what the files hold now; arguments as in `DoorContext`.

    Raises:
        ConfigError: A file can't be read, is not a certificate or key, or the key does not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError as error:
            raise _unusable(tls.client_ca, "tls.client_ca", error, "certificates in PEM") from None
        except OSError as error:
            raise _unusable(tls.client_ca, "tls.client_ca", error) from None
    _load_certificate(context, tls)
    return context


def _load_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    for key, path in (("tls.cert", tls.cert), ("tls.key", tls.key)):
        try:
            path.open("rb").close()  # OpenSSL does not say which of the two is missing
        except OSError as error:
            raise _unusable(path, key, error) from None
    try:
        # Without `password`, OpenSSL would ask the terminal for an encrypted key's, and block.
        context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        wanted = f"a certificate in PEM, and {tls.key} its own key without a password"
        raise _unusable(tls.cert, "tls.cert", error, wanted) from None


def _expiry_unix_s(path: Path) -> float:
    from cryptography.x509 import load_pem_x509_certificates  # slow to import; most have no TLS

    chain = load_pem_x509_certificates(path.read_bytes())
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def _unusable(path: Path, key: str, error: OSError, wanted: str = "") -> ConfigError:
    told = f"should be {wanted}: {error}" if wanted else f"can't be read: {error.strerror}"
    return ConfigError(str(path), [Problem(key, told)])


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The DNS and URI names and the common name in a certificate, in the form that `ssl` gives."""
    if not peer:
        return ()
    names = [value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    names += [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return tuple(names)
