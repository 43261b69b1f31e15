"""What a TCP connection is told: small messages at once, and no waiting for who is gone."""

from __future__ import annotations

import socket

CLIENT_GIVES_UP_MS = 5_000
"""A client's connection over which nothing gets through for so long is given up for a new one.

TCP would try again ever more seldom, and then deliver first what nobody waits for any more.
"""

DOOR_GIVES_UP_MS = 30_000
"""The same at the box, where who takes nothing may be there all the same, and only be slow."""

_OPTIONS = {
    "TCP_NODELAY": 1,
    # Silent ones are asked whether anybody is there. Who vanished says nothing, and its connection
    # would be held for ever.
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}


def set_up_tcp(sock: socket.socket, gives_up_ms: int, **more: int) -> None:
    """Sets the options of a connection that has just been opened; leaves unix sockets alone.

    Systems other than Linux do without those that they lack.

    Args:
        sock: The connection's.
        gives_up_ms: How long what was sent may stay unacknowledged (`TCP_USER_TIMEOUT`).
        **more: Other options of TCP.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_OPTIONS, "TCP_USER_TIMEOUT": gives_up_ms, **more}.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
