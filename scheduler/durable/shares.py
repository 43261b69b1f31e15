"""What several tenants use at once, so that none of them takes all of it from the others."""

from __future__ import annotations


class Shares:
    """How much each has of something.

    One alone may have all of it. While others have some each may have an equal part; the first
    thing that one takes is never refused, so that who has much now can't keep others out.
    """

    def __init__(self) -> None:
        """Nobody has anything."""
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """How many have some."""
        return len(self._held)

    def take(self, tenant: str, amount: int, most: int) -> bool:
        """Gives a tenant 1 or more, of so much in all; whether it may have that."""
        own = self._held.get(tenant, 0)
        if own and own + amount > most // len(self._held):
            return False
        self._held[tenant] = own + amount
        return True

    def give_back(self, tenant: str, amount: int) -> None:
        """Takes some of it back, or all."""
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]
