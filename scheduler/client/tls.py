"""The client's side of TLS: the CA to trust, the certificate to show, and remedies for failures."""

from __future__ import annotations

import os
import ssl

_ANOTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_ANOTHER_TIME = frozenset({9, 10})
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_ABOUT_OURS = ("CERT", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
"""Words in the alerts of a server that requires a client certificate, or rejects the one shown."""


class TlsFailure(ConnectionError):
    """TLS with a box failed; the message says why, and how to fix it."""


def client_context() -> ssl.SSLContext:
    """The TLS context from the environment: the CA to trust, and the certificate to show.

    Raises:
        TlsFailure: A file that the environment names can't be used.
    """
    ca, certificate, key = map(os.environ.get, ("LAXITY_CA", "LAXITY_CERT", "LAXITY_KEY"))
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise TlsFailure(f"LAXITY_CA={ca} can't be used: {_said(error)}") from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None)
        except OSError as error:
            named = f"LAXITY_CERT={certificate}" + (f" with LAXITY_KEY={key}" if key else "")
            raise TlsFailure(f"{named} can't be used: {_said(error)}") from error
    return context


def tls_failure(error: ssl.SSLError) -> TlsFailure:
    """The error for a failed handshake, with its remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return TlsFailure(f"its certificate is not accepted: {why}; {_remedy(error.verify_code)}")
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_OURS):
        shown = os.environ.get("LAXITY_CERT")
        told = "rejects the" if shown else "requires a"
        return TlsFailure(f"it {told} client certificate ({reason}): {_certificate_wanted()}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return TlsFailure("the server there does not speak TLS: is it a tcp:// address?")
    return TlsFailure(f"the TLS handshake failed: {_said(error)}")


def closed_early() -> TlsFailure:
    """The error for a TLS connection that the server closed before its welcome.

    A door closes the connection of a client without the required certificate, and the alert with
    the reason is usually lost.
    """
    told = "it closed the connection before its welcome; if it requires a client certificate"
    return TlsFailure(f"{told}, {_certificate_wanted()}")


def _remedy(code: int) -> str:
    if code in _ANOTHER_NAME:
        return "use a name or address that is in its certificate, or have this one added to it"
    if code in _ANOTHER_TIME:
        return "renew the box's certificate (tls.cert), or correct the clock that is wrong"
    if ca := os.environ.get("LAXITY_CA"):
        return f"LAXITY_CA={ca} must contain the certificate of the CA that signed it"
    return "set LAXITY_CA to the file with the certificate of the CA that signed it"


def _certificate_wanted() -> str:
    if certificate := os.environ.get("LAXITY_CERT"):
        return f"LAXITY_CERT={certificate} must be signed by a CA in its tls.client_ca"
    return (
        "set LAXITY_CERT to the file of a certificate signed by a CA in its tls.client_ca, and "
        "LAXITY_KEY to the file of its key"
    )


def _said(error: OSError) -> str:
    return error.strerror or str(error)
