"""The client's side of TLS: whom it trusts, what it shows, and what to do where that fails."""

from __future__ import annotations

import os
import ssl

_ANOTHER_NAME = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""

_ANOTHER_TIME = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_ABOUT_OURS = ("CERT", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
"""What is in the alerts of a server that wants another certificate than it was shown, or one."""


class TlsFailure(ConnectionError):
    """There is no TLS with a box; the message says why, and what to do."""


def client_context() -> ssl.SSLContext:
    """What the environment says of certificates: whom to trust, and which one to show.

    Raises:
        TlsFailure: A file that it names can't be used.
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
    """What a failed handshake means for whoever wants to connect."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return TlsFailure(f"its certificate is not accepted: {why}; {_remedy(error.verify_code)}")
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_OURS):
        shown = os.environ.get("LAXITY_CERT")
        told = "does not take the" if shown else "wants a"
        return TlsFailure(f"it {told} client certificate ({reason}): {_certificate_wanted()}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return TlsFailure("what answers there does not speak TLS: is it a tcp:// address?")
    return TlsFailure(f"no TLS with it: {_said(error)}")


def closed_early() -> TlsFailure:
    """What a connection means that TLS was agreed on, or begun, and that was closed before a word.

    A door that misses a certificate closes it, and mostly does not get to say why.
    """
    told = "it closed the connection before its welcome; where it asks for a certificate"
    return TlsFailure(f"{told}, {_certificate_wanted()}")


def _remedy(code: int) -> str:
    if code in _ANOTHER_NAME:
        return "call the box by a name or address in its certificate, or have this one put there"
    if code in _ANOTHER_TIME:
        return "renew the certificate under tls.cert of the box, or set the clock that is wrong"
    if ca := os.environ.get("LAXITY_CA"):
        return f"LAXITY_CA={ca} should hold the certificate of the authority that signed it"
    return "set LAXITY_CA to the file with the certificate of the authority that signed it"


def _certificate_wanted() -> str:
    if certificate := os.environ.get("LAXITY_CERT"):
        return f"an authority in its tls.client_ca should have signed LAXITY_CERT={certificate}"
    return (
        "set LAXITY_CERT and LAXITY_KEY to the files of one that an authority in its tls.client_ca "
        "has signed, and of its key"
    )


def _said(error: OSError) -> str:
    return error.strerror or str(error)
