"""Counts what one door process holds of one kind, in all and by tenant."""

from __future__ import annotations

from collections import Counter

from scheduler.errors import Overloaded
from scheduler.tenants import Tenant


class Held:
    """A count with a limit for all, and one for each tenant.

    Args:
        limit: The most that may be held. Each tenant may hold its `queue_share` of it, at least 1.
        unit: What is counted.
        most_of_one: The largest share that any tenant may have.

    Attributes:
        count: How much is held now.
    """

    def __init__(self, limit: int, unit: str = "bytes", most_of_one: float = 1.0) -> None:
        """Starts with nothing held."""
        self._most_of_one = most_of_one
        self._limit = limit
        self._unit = unit
        self.count = 0
        self._by: Counter[str] = Counter()

    def hold(self, tenant: Tenant, count: int) -> None:
        """Adds to a tenant's count.

        Raises:
            Overloaded: The limit for all or for this tenant would be exceeded.
        """
        share = max(1, int(self._limit * min(tenant.queue_share, self._most_of_one)))
        if self.count + count > self._limit or self._by[tenant.name] + count > share:
            raise Overloaded(
                f"requests hold {min(self._limit, share)} {self._unit} already, or would with this",
                {"limit": self._unit},
            )
        self.add(tenant, count)

    def add(self, tenant: Tenant, count: int) -> None:
        """Adds to a tenant's count what is there already, even beyond a limit."""
        self.count += count
        self._by[tenant.name] += count

    def release(self, tenant: Tenant, count: int) -> None:
        """Subtracts from a tenant's count."""
        if count:
            self.count -= count
            self._by[tenant.name] -= count
