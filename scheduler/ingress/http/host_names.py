"""The names under which an HTTP door without tokens answers.

A page in a browser of this machine can have the name of its own server resolve to a loopback
address (DNS rebinding); for the browser, the door is then the page's own server, and the page may
read the answers. The browser still says in Host which name it asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from scheduler.errors import Forbidden


class HostNames:
    """Checks Host headers against names that no web page can have chosen.

    These are IP addresses, which no name resolves to anything else; `localhost` and the names below
    it, which browsers don't look up; the name of this machine; and the configured ones.

    Args:
        configured: Further names, such as the one under which a reverse proxy is known.
    """

    def __init__(self, configured: Iterable[str]) -> None:
        """Takes the name of this machine from the system."""
        self._names = {"", "localhost", *map(_plain, (socket.gethostname(), *configured))}

    def check(self, host: str) -> None:
        """Checks the Host header of a request; empty if it has none, as no browser's has.

        Raises:
            Forbidden: A web page may have chosen that name.
        """
        if host.startswith("["):
            return  # an IPv6 address
        name = _plain(host.partition(":")[0])
        if name in self._names or name.endswith(".localhost") or _is_ipv4(name):
            return
        raise Forbidden(
            f"this door needs no token, so a web page could have led a browser here by the name "
            f"{host!r:.100}; use localhost or an IP address, list the name in doors.host_names, or "
            "require a token (token_file)"
        )


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_ipv4(name: str) -> bool:
    try:
        socket.inet_aton(name)  # takes the short forms as well, as browsers do: 127.1
    except OSError:
        return False
    return True
