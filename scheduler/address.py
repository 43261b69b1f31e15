"""Addresses of a scheduler: parsing and defaults of `unix://`, `tcp://` and `tls://` URLs."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import SplitResult, urlsplit

from scheduler.errors import LaxityError

Scheme = Literal["unix", "tcp", "tls"]

SYSTEM_SOCKET = Path("/run/laxity/laxity.sock")
ACCEPTED = "unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"

# sockaddr_un.sun_path has 108 bytes on Linux, one of them for the terminating NUL; see unix(7).
LONGEST_SOCKET_PATH = 107


class AddressError(LaxityError, ValueError):
    """A URL is not a valid address of a scheduler."""

    code = "invalid_address"


@dataclass(frozen=True)
class Address:
    """Where a scheduler listens or can be reached.

    Attributes:
        scheme: `unix`, `tcp`, or `tls` (TCP with TLS).
        path: The socket's absolute path; None unless the scheme is `unix`.
        host: A name or an IP address, without brackets; None for `unix`.
        port: 0 to 65535; None for `unix`. Port 0 lets a listener take any free one.
    """

    scheme: Scheme
    path: str | None = None
    host: str | None = None
    port: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a unix socket or a loopback address."""
        if self.scheme == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host or "").is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parses the URL of a scheduler.

    Args:
        url: `unix:///PATH`, `tcp://HOST:PORT` or `tls://HOST:PORT`; an IPv6 host in brackets.

    Raises:
        AddressError: The URL has none of these forms; the message says what would be accepted.
    """
    if not isinstance(url, str):
        raise AddressError(f"an address is text ({ACCEPTED}), not {url!r}")
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise AddressError(f"{url!r} is not an address; {_guess(url)}")
    if scheme == "unix":
        return _parse_unix(url)
    if scheme in ("tcp", "tls"):
        return _parse_network(url, cast(Scheme, scheme))
    others = scheme.removesuffix("s") in ("http", "grpc", "http+unix", "grpc+unix")
    told = "; that door is for other clients than laxity's own" if others else ""
    raise AddressError(f"{url!r} has the unknown scheme {scheme!r}; accepted is {ACCEPTED}{told}")


def default_socket() -> Address:
    """The unix socket on which a daemon of this user listens by default.

    That is `$XDG_RUNTIME_DIR/laxity/laxity.sock`; without that variable
    `/run/laxity/laxity.sock` for root and `~/.laxity/run/laxity.sock` for others.
    """
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    if runtime_dir:
        return Address("unix", path=str(Path(runtime_dir) / "laxity" / "laxity.sock"))
    if os.geteuid() == 0:
        return Address("unix", path=str(SYSTEM_SOCKET))
    return Address("unix", path=str(Path.home() / ".laxity" / "run" / "laxity.sock"))


def default_url() -> str:
    """The URL that a client uses by default.

    `LAXITY_URL` if it is set; else the socket of this user's daemon or, if only the system's daemon
    has a socket, that one.

    Raises:
        AddressError: `LAXITY_URL` is not set, and Python has no unix sockets here, as on Windows.
    """
    url = os.environ.get("LAXITY_URL")
    if url:
        return url
    _check_unix("without LAXITY_URL, a client looks for a box on its own machine")
    own = default_socket()
    if not os.path.exists(str(own.path)) and os.path.exists(SYSTEM_SOCKET):
        return f"unix://{SYSTEM_SOCKET}"
    return str(own)


def door_for_others(doors: Iterable[Address]) -> Address | None:
    """The first native door that other machines reach, or else one that other programs here do."""
    found = [door for door in doors if door.scheme != "unix"]
    return next((door for door in found if not door.is_local), next(iter(found), None))


def no_listening(address: Address, error: OSError) -> OSError:
    """The error to raise if listening failed, with the address and the reason."""
    return OSError(f"can't listen on {address}: {plainly(error)}")


def plainly(error: BaseException) -> str:
    """What an error says to people; empty if nothing.

    asyncio's text for a connection or listener that failed has the address again, and no reason.
    """
    if not isinstance(error, OSError):
        return str(error)
    # A resolver's and OpenSSL's errors have classes and numbers of their own, Windows more numbers.
    is_own = type(error).__module__ != "builtins" or getattr(error, "winerror", None)
    return os.strerror(error.errno) if error.errno and not is_own else error.strerror or str(error)


def spoken(kind: Literal["http", "grpc"], url: str) -> str:
    """A door's address in the form that clients of its protocol use."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return f"{kind}+unix://{rest}"
    return f"{kind}{'s' if scheme == 'tls' else ''}://{rest}"


def _guess(url: str) -> str:
    """A suggestion for a URL without a scheme."""
    path = url.removeprefix("unix:")  # as gRPC writes it
    if path.startswith("/"):
        return f"did you mean 'unix://{path}'?"
    host, _, port = url.rpartition(":")
    if host and port.isdecimal():
        return f"did you mean 'tcp://{url}'?"
    return f"accepted is {ACCEPTED}"


def _check_unix(what: str) -> None:
    if not hasattr(socket, "AF_UNIX"):
        raise AddressError(
            f"{what}, but Python has no unix sockets here: name a box by tcp://HOST:PORT or "
            "tls://HOST:PORT, as in its listen.native"
        )


def _parse_unix(url: str) -> Address:
    _check_unix(f"{url!r} is a unix socket")
    path = url[len("unix://") :]
    if not path.startswith("/") or path.endswith("/"):
        raise AddressError(f"{url!r} needs the absolute path of a socket: unix:///PATH")
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        raise AddressError(
            f"the path in {url!r} has {size} bytes; a unix socket's may have {LONGEST_SOCKET_PATH}"
        )
    return Address("unix", path=path)


def _parse_network(url: str, scheme: Scheme) -> Address:
    form = f"{scheme}://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{url!r} is not of the form {form}: {error}") from None
    if not parts.hostname or port is None:
        missing = "a port" if parts.hostname else "a host"
        raise AddressError(f"{url!r} lacks {missing}: {form}")
    if _has_more(parts):
        raise AddressError(f"{url!r} holds more than a host and a port: {form}")
    return Address(scheme, host=parts.hostname, port=port)


def _has_more(parts: SplitResult) -> bool:
    return bool(parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
