"""Whether a request can be accepted at all: limits, and targets that have the model."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.ledger import Ledger
from scheduler.core.limits import Limits
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import Request, RequestClass
from scheduler.core.targets import TargetState

Targets = Mapping[str, TargetState]


def refusal(
    request: Request, now_ns: int, ledger: Ledger, limits: Limits, targets: Targets
) -> tuple[Outcome, str] | None:
    """The outcome and reason for refusing a request just opened; None if it may be queued."""
    if len(ledger.records) > limits.requests:
        return Outcome.OVERLOADED, f"{limits.requests} requests are held already"
    if ledger.held_bytes > limits.bytes:
        return Outcome.OVERLOADED, f"requests hold {limits.bytes} bytes of tensors already"
    kind = request.kind
    if kind not in ledger.queues and ledger.classes.get(kind.model, 0) >= limits.classes:
        return Outcome.OVERLOADED, (
            f"inputs of {limits.classes} shapes wait for model {kind.model!r} already "
            "(limits.queue_shapes); model.yaml can have them padded to a few"
        )
    if request.deadline_ns <= now_ns:
        return Outcome.EXPIRED, "the deadline had passed on arrival"
    if not servable(request, now_ns, targets):
        return Outcome.UNAVAILABLE, why_unavailable(request.kind, targets)
    return None


def servable(request: Request, now_ns: int, targets: Targets) -> bool:
    """Whether some target with the model takes batches now or will before the deadline."""
    for target in targets.values():
        back_ns = target.back_ns(now_ns)
        if back_ns is None or back_ns >= request.deadline_ns:
            continue
        if target.usable(request.kind):
            return True
        # An overdue offer is expected to take as long again, just like an overdue target.
        if target.up:
            back_ns = 2 * now_ns - target.up_ns
        if target.awaited and back_ns < request.deadline_ns and target.expects(request.kind):
            return True
    return False


def why_unavailable(kind: RequestClass, targets: Targets) -> str:
    """Why no target can serve a class."""
    wanted = f"model {kind.model!r}" + (f" variant {kind.variant!r}" if kind.variant else "")
    able = [t for t in targets.values() if t.usable(kind)]
    if not able:
        tensors = kind.model, kind.shapes
        if small := [t.spec.id for t in targets.values() if tensors in t.spec.too_large]:
            return f"inputs this large or expensive for {wanted} are refused by {', '.join(small)}"
        return f"no target has {wanted} ready"
    names = ", ".join(t.spec.id for t in able)
    how = "takes no batch in time" if any(t.up for t in able) else "is down"
    return f"{wanted} runs on {names}, which {how}"
