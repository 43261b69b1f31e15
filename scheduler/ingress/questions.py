"""The native door's messages that are answered at once, by what the box knows or is set to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.errors import InvalidInput
from scheduler.tenants import Tenant
from scheduler.wire import Header

if TYPE_CHECKING:
    from scheduler.ingress.native import NativeDoor


def answer_to(header: Header, tenant: Tenant, door: NativeDoor) -> Any:
    """The value of the reply to a question of a tenant's.

    Raises:
        InvalidInput: There is no such type of message, or it lacks something.
        Forbidden: The tenant may not ask this.
        ModelNotFound: There is no such model for the tenant.
    """
    kind, admission = header["t"], door.admission
    if kind == "models":
        return admission.describe_models(tenant)
    if kind == "status":
        tenant.check_scope("metrics")
        return door.status()
    if kind == "statistics":
        return [each for each in admission.statistics.describe() if tenant.sees(each["name"])]
    if kind not in ("load", "unload", "policy"):
        raise InvalidInput(
            f"message type {kind!r} is not known; there are infer, cancel, models, status, "
            "statistics, load, unload, policy, task, task_result, task_status, task_cancel, "
            "task_forget, tasks, peer, leave, ping, model_files, model_file"
        )
    tenant.check_scope("admin")
    if kind == "policy":
        return door.swap_policy(header.get("name"), header.get("options"))
    model = str(header.get("model"))
    tenant.check_model(model)
    (admission.load if kind == "load" else admission.unload)(model)
    return None
