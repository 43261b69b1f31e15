"""Quotas of tenants: a token bucket for the rate, and counts of requests and bytes. No clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduler.core.limits import Limits
from scheduler.errors import Overloaded
from scheduler.tenants import Tenant


@dataclass(slots=True)
class _Use:
    full_ns: int = 0
    """When the bucket will be full again if nothing more is taken (GCRA, as in ATM's I.371)."""
    requests: int = 0
    bytes: int = 0


class Quotas:
    """Accounts for what tenants hold.

    Args:
        limits: The most that the box holds; a tenant may hold its `queue_share` of that.
    """

    def __init__(self, limits: Limits) -> None:
        """Starts with nothing held."""
        self._limits = limits
        self._uses: dict[str, _Use] = {}

    def admit(self, tenant: Tenant, size_bytes: int, now_ns: int) -> None:
        """Counts a request in.

        Raises:
            Overloaded: The request exceeds the tenant's quota. The detail names the tenant, the
                limit and, for the rate, `retry_after_ms`.
        """
        use = self._uses.setdefault(tenant.name, _Use())
        most = math.ceil(tenant.queue_share * self._limits.requests)
        if tenant.concurrency is not None:
            most = min(most, tenant.concurrency)
        if use.requests >= most:
            raise _beyond(tenant, "concurrency", f"{most} requests at once")
        most_bytes = int(tenant.queue_share * self._limits.bytes)
        if use.bytes + size_bytes > most_bytes:
            raise _beyond(tenant, "bytes", f"{most_bytes} bytes of tensors at once")
        if tenant.rate_per_s is not None:
            self._take(use, tenant, tenant.rate_per_s, now_ns)
        use.requests += 1
        use.bytes += size_bytes

    def release(self, tenant: Tenant, size_bytes: int) -> None:
        """Counts a request out."""
        use = self._uses[tenant.name]
        use.requests -= 1
        use.bytes -= size_bytes

    def held(self) -> dict[str, int]:
        """How many requests each tenant holds now."""
        return {name: use.requests for name, use in self._uses.items()}

    def _take(self, use: _Use, tenant: Tenant, rate_per_s: float, now_ns: int) -> None:
        step_ns = int(1e9 / rate_per_s)
        full_ns = max(use.full_ns, now_ns) + step_ns
        wait_ns = full_ns - now_ns - tenant.burst * step_ns
        if wait_ns > 0:
            raise _beyond(
                tenant, "rate", f"{rate_per_s:g} requests/s", retry_after_ms=wait_ns / 1e6
            )
        use.full_ns = full_ns


def _beyond(tenant: Tenant, limit: str, words: str, **detail: float) -> Overloaded:
    text = f"{tenant.name!r} may have {words}"
    return Overloaded(text, {"tenant": tenant.name, "limit": limit, **detail})
