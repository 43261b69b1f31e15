"""Ports for servers that are killed and restarted."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 10_000, 32_767
_TRIES = 100


def free_port() -> int:
    """A port that is free now, and outside the kernel's range of ephemeral ports.

    While a server is down, any connection may take its port if that is ephemeral, and the server
    can't restart.

    Raises:
        OSError: No free port was found.
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
    """The last port before the kernel's ephemeral range, but at least 1,000 above `_FIRST`."""
    try:
        least = int(_GIVEN.read_text().split()[0])
    except OSError:  # not Linux, where the ephemeral range begins later
        return _LAST
    return max(_FIRST + 1_000, least - 1)
