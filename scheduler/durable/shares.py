"""Divides a limited resource among tenants, so that none can take all of it from the others."""

from __future__ import annotations


class Shares:
    """How much of a resource each tenant holds.

    A single tenant may hold all of it. While several hold some, each may grow to an equal part. A
    tenant that holds nothing is never refused, so that a tenant with much can't keep others out.
    """

    def __init__(self) -> None:
        """Starts with nothing held."""
        self._held: dict[str, int] = {}

    def take(self, tenant: str, amount: int, most: int) -> bool:
        """Gives a tenant `amount`, at least 1, of `most` in all; False if it may not have that."""
        own = self._held.get(tenant, 0)
        if own and own + amount > most // len(self._held):
            return False
        self._held[tenant] = own + amount
        return True

    def give_back(self, tenant: str, amount: int) -> None:
        """Returns some or all of what a tenant holds."""
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]
