"""Changes to the box and its settings, which need the scope `admin`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.errors import Forbidden, InvalidInput
from scheduler.ingress.oip.service import Service
from scheduler.tenants import Tenant

_TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_LEVELS = {"log_errors": "error", "log_warnings": "warning", "log_info": "info"}


class Admin:
    """Carries out an administrator's orders.

    Args:
        service: The settings and state that the doors share.
    """

    def __init__(self, service: Service) -> None:
        """Changes nothing yet."""
        self._service = service

    async def load(self, tenant: Tenant, model: str) -> None:
        """Accepts requests for a model again.

        Raises:
            Forbidden: The tenant may not do this, or nobody may on this box.
            ModelNotFound: There is no such model.
        """
        await self._order(tenant, "load", model=model)

    async def unload(self, tenant: Tenant, model: str) -> None:
        """Refuses requests for a model; errors as in `load`."""
        await self._order(tenant, "unload", model=model)

    async def swap_policy(self, tenant: Tenant, name: Any, options: Any) -> Any:
        """Swaps the policy.

        Raises:
            Forbidden: The tenant may not do this, or nobody may on this box.
            InvalidInput: There is no such policy or option.
        """
        return await self._order(tenant, "policy", name=name, options=options)

    def trace(self) -> dict[str, Any]:
        """Triton's trace settings: tracing is always off, and the journal tells more."""
        return dict(_TRACE)

    def set_trace(self, tenant: Tenant, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Accepts trace settings that change nothing.

        Raises:
            Forbidden: The tenant may not do this.
            InvalidInput: A setting is unknown, or would change.
        """
        tenant.check_scope("admin")
        return _unchanged(settings, _TRACE, "tracing is off; what happened is in the journal")

    def logging(self) -> dict[str, Any]:
        """Triton's log settings."""
        shown = ("error", "warning", "info", "debug").index(self._service.log_level)
        return {
            "log_file": "",
            **{name: shown >= index for index, name in enumerate(_LEVELS)},
            "log_verbose_level": int(self._service.log_level == "debug"),
            "log_format": "ISO8601",
        }

    def set_logging(self, tenant: Tenant, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Accepts log settings that change nothing.

        Raises:
            Forbidden: The tenant may not do this.
            InvalidInput: A setting is unknown, or would change.
        """
        tenant.check_scope("admin")
        return _unchanged(settings, self.logging(), "log.level in the configuration sets it")

    async def _order(self, tenant: Tenant, kind: str, **fields: Any) -> Any:
        tenant.check_scope("admin")
        if self._service.no_orders:
            raise Forbidden(self._service.no_orders)
        answer = await self._service.box.ask(kind, tenant, **fields)
        self._service.box.changed()
        return answer


def _unchanged(settings: Mapping[str, Any], current: Mapping[str, Any], why: str) -> dict[str, Any]:
    for name, value in settings.items():
        if name not in current:
            raise InvalidInput(f"there is no setting {name!r}; there are {', '.join(current)}")
        if value not in (current[name], None):
            raise InvalidInput(f"{name} is {current[name]!r} and can't be changed here: {why}")
    return dict(current)
