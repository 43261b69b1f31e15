"""TCP: send small messages at once, give up on peers that are gone, and listen on `[::]`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from scheduler.address import Address

CLIENT_GIVES_UP_MS = 5_000
"""How long nothing may get through on a client's connection before it is replaced by a new one.

TCP would retry less and less often, and then first deliver messages that nobody waits for any more.
"""

DOOR_GIVES_UP_MS = 30_000
"""The same at the box. It is longer, because a client that reads nothing may only be slow."""

_OPTIONS = {
    "TCP_NODELAY": 1,
    # Idle connections are probed. A peer that vanished sends nothing, and its connection would be
    # kept for ever.
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}


def set_up_tcp(sock: socket.socket, gives_up_ms: int, **more: int) -> None:
    """Sets the options of a newly opened connection; leaves unix sockets unchanged.

    Options that the operating system lacks are skipped.

    Args:
        sock: The connection's socket.
        gives_up_ms: How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`).
        **more: Further TCP options.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_OPTIONS, "TCP_USER_TIMEOUT": gives_up_ms, **more}.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def takes_ipv4(address: Address, listed: Iterable[Address]) -> bool:
    """Whether a listener on `[::]` takes IPv4 too: unless one of IPv4 is listed with its port."""
    if address.host != "::" or not socket.has_dualstack_ipv6():
        return False
    return not any(_is_ipv4(each.host) and each.port == address.port for each in listed)


def _is_ipv4(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").version == 4
    except ValueError:  # a name, or a path
        return False


def listener_for_both(port: int) -> socket.socket:
    """A listening socket on every address of this machine, of IPv6 and IPv4.

    asyncio would make one for IPv6 alone, whatever the system's setting.

    Raises:
        OSError: The port is not free.
    """
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)


def local_host_of(name: object) -> str | None:
    """The address in a socket's name, one of IPv4 as such; None if it has none.

    A socket for both gives the mapped form, ::ffff:10.0.0.7, which is in no certificate.
    """
    if not isinstance(name, tuple):
        return None
    return str(name[0]).removeprefix("::ffff:")
