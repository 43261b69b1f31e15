"""The client's side of TLS: the CA to trust, the certificate to show, and remedies for failures."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.address import Address, plainly

_ANOTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_ANOTHER_TIME = frozenset({9, 10})
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_ABOUT_OURS = ("CERT", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
"""Words in the alerts of a server that requires a client certificate, or rejects the one shown."""

NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons if the other end does not speak TLS."""

PERHAPS_TLS = (
    "it closed the connection before its welcome; if it speaks TLS there, its address begins with "
    "tls://"
)
"""Why a `tcp` address gave no welcome. A server that expects a TLS handshake just hangs up."""

FilePath = str | os.PathLike[str]


class TlsFailure(ConnectionError):
    """TLS with a box failed; the message says why, and how to fix it."""


class _Named(NamedTuple):
    """A file, and how the user named it."""

    path: str
    said: str


@dataclass(frozen=True, slots=True)
class Tls:
    """The CA to trust and the certificate to show on `tls` addresses, as files in PEM.

    What is None is taken from `LAXITY_CA`, `LAXITY_CERT` and `LAXITY_KEY`, if these are set.
    Variables and files are read for each connection, so renewed certificates need no new client.

    Attributes:
        ca: The certificates of the CAs to trust; by default those that the system trusts.
        cert: The client's own certificate.
        key: Its key, unless the same file has both.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """The context for a connection.

        Raises:
            TlsFailure: A file can't be used.
        """
        ca, certificate, key = self._ca(), self._certificate(), self._key()
        try:
            context = ssl.create_default_context(cafile=ca.path if ca else None)
        except OSError as error:
            raise TlsFailure(
                f"{ca.said if ca else 'the CAs of this system'} can't be used: {plainly(error)}"
            ) from error
        if certificate:
            try:
                # Without `password`, OpenSSL would ask the terminal for an encrypted key's.
                context.load_cert_chain(certificate.path, key.path if key else None, password="")
            except OSError as error:
                named = certificate.said + (f" with {key.said}" if key else "")
                raise TlsFailure(f"{named} can't be used: {plainly(error)}") from error
        return context

    def failure(self, error: ssl.SSLError) -> TlsFailure:
        """The error for a failed handshake, with its remedy."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why, remedy = error.verify_message.rstrip("."), self._remedy(error.verify_code)
            return TlsFailure(f"its certificate is not accepted: {why}; {remedy}")
        reason = error.reason or ""
        if "ALERT" in reason and any(word in reason for word in _ABOUT_OURS):
            told = "rejects the" if self._certificate() else "requires a"
            wanted = self._certificate_wanted()
            return TlsFailure(f"it {told} client certificate ({reason}): {wanted}")
        if reason in NO_TLS:
            return TlsFailure("the server there does not speak TLS: is it a tcp:// address?")
        return TlsFailure(f"the TLS handshake failed: {plainly(error)}")

    def closed_early(self) -> TlsFailure:
        """The error for a connection that the server closed before its welcome.

        A door closes the connection of a client without the required certificate, and the alert
        with the reason is usually lost.
        """
        told = "it closed the connection before its welcome; if it requires a client certificate"
        return TlsFailure(f"{told}, {self._certificate_wanted()}")

    def _ca(self) -> _Named | None:
        return _named("ca", self.ca) or _from_environment("LAXITY_CA")

    def _certificate(self) -> _Named | None:
        return _named("cert", self.cert) or _from_environment("LAXITY_CERT")

    def _key(self) -> _Named | None:
        # Never the environment's for a certificate that is not.
        return _named("key", self.key) if self.cert else _from_environment("LAXITY_KEY")

    def _remedy(self, code: int) -> str:
        if code in _ANOTHER_NAME:
            return "use a name or address that is in its certificate, or have this one added to it"
        if code in _ANOTHER_TIME:
            return "renew the box's certificate (tls.cert), or correct the clock that is wrong"
        if ca := self._ca():
            return f"{ca.said} must contain the certificate of the CA that signed it"
        return (
            "set LAXITY_CA to the file with the certificate of the CA that signed it, or pass ca= "
            "in Python"
        )

    def _certificate_wanted(self) -> str:
        if certificate := self._certificate():
            return f"{certificate.said} must be signed by a CA in its tls.client_ca"
        return (
            "set LAXITY_CERT to the file of a certificate signed by a CA in its tls.client_ca, and "
            "LAXITY_KEY to the file of its key, or pass cert= and key= in Python"
        )


def tls_for(
    address: Address, ca: FilePath | None, cert: FilePath | None, key: FilePath | None
) -> Tls:
    """The files that a caller names for a connection to an address.

    Raises:
        ValueError: A path is empty, the address is `tcp`, where nothing is encrypted, or there is a
            key alone. (On a `unix` address they have no effect: nothing leaves the machine.)
    """
    named = {"ca": ca, "cert": cert, "key": key}
    files = {name: os.fspath(path) for name, path in named.items() if path is not None}
    for name, path in files.items():
        if not path:
            raise ValueError(f"{name}= is empty; it should be a file's path, or None")
    if files and address.scheme == "tcp":
        raise ValueError(
            f"{next(iter(files))}= is for tls://HOST:PORT; what {address} carries is not encrypted"
        )
    if "key" in files and "cert" not in files:
        raise ValueError("key= is the key of a certificate, which cert= should name")
    return Tls(**files)


def _named(argument: str, path: str | None) -> _Named | None:
    return _Named(path, f"{argument}={path}") if path else None


def _from_environment(variable: str) -> _Named | None:
    return _named(variable, os.environ.get(variable))
