"""The certificates that doors show, and the names in those that clients show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.config_doors import TlsConfig


def server_context(tls: TlsConfig, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """What handshakes of a door need.

    Args:
        tls: Where the certificates are.
        alpn: The protocols that the door speaks, by their registered names.

    Raises:
        OSError: A file can't be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.client_ca)
    load_certificate(context, tls)
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Handshakes from now on use the certificate that the files hold now.

    Raises:
        OSError: A file can't be read, or is no certificate or key.
    """
    context.load_cert_chain(tls.cert, tls.key)


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a certificate, as `ssl` gives it: DNS and URI ones, and the common name."""
    if not peer:
        return ()
    names = [value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    names += [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return tuple(names)
