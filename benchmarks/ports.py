"""Ports for servers that are killed and come back."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 10_000, 32_767
_TRIES = 100


def free_port() -> int:
    """A port that nobody uses now, and that the kernel gives no connection by chance.

    One of those that it gives may be taken while a server that had it is away, by anybody's
    connection, and the server can't come back.

    Raises:
        OSError: None was found.
    """
    for _ in range(_TRIES):
        port = random.SystemRandom().randint(_FIRST, _last())
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {_FIRST} to {_last()} in {_TRIES} tries")


def _last() -> int:
    """The last port before those that the kernel gives; there are some, or none helps."""
    try:
        least = int(_GIVEN.read_text().split()[0])
    except OSError:  # not Linux, where they begin later
        return _LAST
    return max(_FIRST + 1_000, least - 1)
