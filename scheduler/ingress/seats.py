"""Limits how many of a door's connections each tenant has."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from scheduler.errors import Overloaded
from scheduler.tenants import UNCOUNTED, Tenant

_C = TypeVar("_C")

_MOST_OF_ONE = 0.5
"""The largest part of all connections for a tenant that sets no `connections`."""


class Seats(Generic[_C]):
    """Counts connections by tenant.

    Args:
        connections: How many may be open in all.
    """

    def __init__(self, connections: int) -> None:
        """Starts with no connections."""
        self._default = max(1, int(_MOST_OF_ONE * connections))
        self._taken: dict[_C, str] = {}
        self._count: Counter[str] = Counter()

    def take(self, connection: _C, tenant: Tenant) -> None:
        """Counts a connection as a tenant's, unless it is counted already.

        Raises:
            Overloaded: The tenant already has as many connections as it may.
        """
        if connection in self._taken or tenant.name in UNCOUNTED:
            return
        most = self._default if tenant.connections is None else tenant.connections
        if self._count[tenant.name] >= most:
            raise Overloaded(
                f"{tenant.name!r} may have {most} connections at once: close some, let requests "
                "share one, or have its connections raised in the box's tenants_file",
                {"tenant": tenant.name, "limit": "connections"},
            )
        self._taken[connection] = tenant.name
        self._count[tenant.name] += 1

    def leave(self, connection: _C) -> None:
        """Counts a connection out, if it is counted."""
        name = self._taken.pop(connection, None)
        if name is not None:
            self._count[name] -= 1
            if not self._count[name]:
                del self._count[name]
