"""The addresses on which a box listens: check that they are free, and bind sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edge_agent.errors import AgentError
from scheduler.address import Address, plainly
from scheduler.ingress.unix_door import is_answered
from scheduler.sockets import takes_ipv4
from workers.link_server import listener_at

_BACKLOG = 1024
_NOT_OF_THIS_BOX = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors for an address of a name that this box does not have, such as IPv6 where it has none."""


_REMEDIES = {
    os.strerror(errno.EADDRINUSE): (
        "stop what uses it (`laxity doctor --config FILE` names it), or listen elsewhere"
    ),
    os.strerror(errno.EACCES): "run this as a user who may, or listen elsewhere",
}
"""What to do, by the reason for a refusal."""


class CantListen(AgentError):
    """An address is in use, or this process can't listen on it.

    Attributes:
        reason: Which address, and why; the message also has what to do, if that is known.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        """For people; `laxity doctor` has remedies of its own."""
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason


def check_free(address: Address, listed: Iterable[Address] = ()) -> None:
    """Check that an address is free and that this process may listen on it.

    Args:
        address: The address.
        listed: All addresses on which the box listens; see `takes_ipv4`.

    Raises:
        CantListen: It is in use, or this process can't listen on it.
    """
    if address.path is None:
        _check_port(address, takes_ipv4(address, listed))
    else:
        _check_path(address, Path(address.path))


def remove_stale(addresses: Iterable[Address]) -> None:
    """Remove the files of unix sockets on which nobody listens any more."""
    for address in addresses:
        if address.path is not None:
            path = Path(address.path)
            with contextlib.suppress(OSError):
                if path.is_socket() and not is_answered(address.path):
                    path.unlink()


def bind(
    address: Address, listens: bool, listed: Sequence[Address] = ()
) -> tuple[socket.socket | None, str]:
    """Bind a socket; return it, and the address with the port that it got.

    Args:
        address: The address.
        listens: Whether the socket listens. If a door binds by itself (gRPC), the socket only
            reserves the port for it, and a path needs no socket.
        listed: All addresses on which the box listens; see `takes_ipv4`.

    Raises:
        CantListen: The address is not available.
    """
    try:
        if address.path is not None:
            return listener_at(Path(address.path), _BACKLOG) if listens else None, str(address)
        made = _bound_any(_resolved(address), not listens, takes_ipv4(address, listed))
        if listens:
            made.listen(_BACKLOG)
    except OSError as error:
        raise _refusal(address, plainly(error)) from None
    port = made.getsockname()[1]
    return made, str(Address(address.scheme, host=address.host, port=port))


def _check_path(address: Address, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(address, f"the folder can't be made: {error.strerror}") from None
    try:
        if path.exists() and not path.is_socket():
            raise _refusal(address, f"{path} exists and is not a socket")
        if is_answered(str(path)):
            raise CantListen(f"another agent listens on {address}", "stop it, or listen elsewhere")
        listener_at(path).close()  # no other check tells whether this folder takes sockets
        path.unlink()
    except OSError as error:
        raise _refusal(address, plainly(error)) from None


def _check_port(address: Address, both: bool) -> None:
    """Try to bind the port without SO_REUSEPORT, by which gRPC servers share a port."""
    try:
        found = _resolved(address)
        for family, where in found:
            try:
                _bound(family, where, shared=False, both=both).close()
            except OSError as error:
                if error.errno not in _NOT_OF_THIS_BOX or len(found) == 1:
                    raise
    except OSError as error:
        raise _refusal(address, plainly(error)) from None


def _resolved(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, where) for family, _, _, _, where in found]


def _bound_any(found: list[tuple[int, Any]], shared: bool, both: bool) -> socket.socket:
    """Bind a socket to the first of the addresses that this box has."""
    for family, where in found[:-1]:
        try:
            return _bound(family, where, shared, both)
        except OSError as error:
            if error.errno not in _NOT_OF_THIS_BOX:
                raise
    return _bound(*found[-1], shared, both)


def _bound(family: int, where: Any, shared: bool, both: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


def _refusal(address: Address, why: str) -> CantListen:
    return CantListen(f"can't listen on {address}: {why}", _REMEDIES.get(why, ""))
