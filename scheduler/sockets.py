"""TCP options: send small messages at once, and give up on connections whose peer is gone."""

from __future__ import annotations

import socket

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
