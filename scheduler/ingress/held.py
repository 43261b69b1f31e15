"""What one process of a door holds of a kind, and whose it is."""

from __future__ import annotations

from collections import Counter

from scheduler.errors import Overloaded
from scheduler.tenants import Tenant


class Held:
    """Counts in and out.

    Args:
        limit: How much there may be; of each tenant its share of it, 1 at least.
        unit: What is counted.
        most_of_one: The largest share that any tenant has.

    Attributes:
        count: How much is held now.
    """

    def __init__(self, limit: int, unit: str = "bytes", most_of_one: float = 1.0) -> None:
        """Nothing is held."""
        self._most_of_one = most_of_one
        self._limit = limit
        self._unit = unit
        self.count = 0
        self._by: Counter[str] = Counter()

    def hold(self, tenant: Tenant, count: int) -> None:
        """Counts in.

        Raises:
            Overloaded: There is too much, of all or of this tenant.
        """
        share = max(1, int(self._limit * min(tenant.queue_share, self._most_of_one)))
        if self.count + count > self._limit or self._by[tenant.name] + count > share:
            raise Overloaded(
                f"requests hold {min(self._limit, share)} {self._unit} already, or would",
                {"limit": self._unit},
            )
        self.count += count
        self._by[tenant.name] += count

    def release(self, tenant: Tenant, count: int) -> None:
        """Counts out."""
        if count:
            self.count -= count
            self._by[tenant.name] -= count
