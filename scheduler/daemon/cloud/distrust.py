"""Why a server's certificate is not accepted, with the remedy."""

from __future__ import annotations

import re

_IN_GRPC = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<why>[^:]*)|(?P<name>Hostname Verification)")


def distrusted(why: str) -> str:
    """The text for a person, from that of OpenSSL."""
    if "expired" in why or "not yet valid" in why:
        remedy = "it has to be renewed there, or a clock is wrong"
    elif "mismatch" in why:
        remedy = "the url needs a name or address that is in its certificate"
    else:
        remedy = "tls.ca of this cloud should hold the certificate of the CA that signed it"
    return f"its certificate is not accepted: {why.rstrip('.')}; {remedy}"


def distrusted_by_grpc(details: str) -> str | None:
    """The same, from what gRPC says of a connection that failed; None if that is not why."""
    found = _IN_GRPC.search(details)
    if found is None:
        return None
    return distrusted("Hostname mismatch" if found["name"] else found["why"])
