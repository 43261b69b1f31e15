"""The certificates of the doors, and the names in client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError, Problem

HANDSHAKE_S = 5.0
"""How long a client may take for its TLS handshake, and over gRPC for that of HTTP/2 too."""


def server_context(tls: TlsConfig, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """The TLS context of a door.

    Args:
        tls: The certificate files.
        alpn: The registered names of the protocols that the door speaks.

    Raises:
        ConfigError: A file can't be read, or is not a certificate or key.
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
    load_certificate(context, tls)
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Reads the certificate files again; later handshakes use what they hold now.

    Raises:
        ConfigError: A file can't be read, is not a certificate or key, or the key does not match.
            Handshakes then keep using the previous certificate.
    """
    for key, path in (("tls.cert", tls.cert), ("tls.key", tls.key)):
        try:
            path.open("rb").close()  # OpenSSL does not say which of the two is missing
        except OSError as error:
            raise _unusable(path, key, error) from None
    try:
        # A pair that does not match would leave `context` without its old key, so a throw-away
        # context tries it first.
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            # Without `password`, OpenSSL would ask the terminal for an encrypted key's, and block.
            each.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        wanted = f"a certificate in PEM, and {tls.key} its own key without a password"
        raise _unusable(tls.cert, "tls.cert", error, wanted) from None


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
