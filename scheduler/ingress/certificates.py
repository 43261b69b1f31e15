"""The certificates that doors show, and the names in those that clients show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.config.doors import TlsConfig
from scheduler.config.problems import ConfigError, Problem

HANDSHAKE_S = 5.0
"""How long a client may take to show that it speaks TLS, and over gRPC HTTP/2."""


def server_context(tls: TlsConfig, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """What handshakes of a door need.

    Args:
        tls: Where the certificates are.
        alpn: The protocols that the door speaks, by their registered names.

    Raises:
        ConfigError: A file can't be read, or is no certificate or key.
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
    """Handshakes from now on use the certificate that the files hold now.

    Raises:
        ConfigError: A file can't be read, is no certificate or key, or the key is another one's;
            handshakes go on with what they had.
    """
    for key, path in (("tls.cert", tls.cert), ("tls.key", tls.key)):
        try:
            path.open("rb").close()  # of the two, OpenSSL does not say which it lacks
        except OSError as error:
            raise _unusable(path, key, error) from None
    try:
        # One that does not fit its key would leave a context without the key that it had.
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            # Without a password it would ask a terminal for that of an encrypted key, and wait.
            each.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        wanted = f"a certificate in PEM, and {tls.key} its own key without a password"
        raise _unusable(tls.cert, "tls.cert", error, wanted) from None


def _unusable(path: Path, key: str, error: OSError, wanted: str = "") -> ConfigError:
    told = f"should be {wanted}: {error}" if wanted else f"can't be read: {error.strerror}"
    return ConfigError(str(path), [Problem(key, told)])


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a certificate, as `ssl` gives it: DNS and URI ones, and the common name."""
    if not peer:
        return ()
    names = [value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    names += [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return tuple(names)
