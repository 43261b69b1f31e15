"""The status of a scheduler, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.core.names import natural
from scheduler.core.policy import quantile_of
from scheduler.core.scheduler import Scheduler
from scheduler.core.targets import TargetState
from scheduler.daemon.energy import EnergyAccount
from scheduler.daemon.figures import amount
from scheduler.daemon.link import LinkedTarget
from scheduler.policy_loading import NamedPolicy


def status_of(
    core: Scheduler,
    policy: NamedPolicy,
    linked: Mapping[str, LinkedTarget],
    energy: EnergyAccount,
    now_ns: int,
) -> dict[str, Any]:
    """The requests held, how requests ended, and the state of the targets.

    Args:
        core: The state machine.
        policy: The policy in use.
        linked: The targets, and what their links have reported, by target id.
        energy: The energy that the targets have used.
        now_ns: The time, on the core's clock.
    """
    return {
        "policy": {"name": policy.name, **policy.options},
        "quantile": quantile_of(core.policy),
        "held": len(core.ledger.records),
        "queues": [
            {"model": kind.model, "variant": kind.variant, "requests": len(queue)}
            for kind, queue in core.queues.items()
        ],
        "outcomes": {outcome.value: count for outcome, count in core.counts.items()},
        "targets": [
            {
                "id": target_id,
                **about(core.targets.get(target_id), now_ns),
                **each.describe(),
                "energy": energy.describe(target_id),
            }
            for target_id, each in sorted(linked.items(), key=lambda item: natural(item[0]))
        ],
    }


def about(target: TargetState | None, now_ns: int) -> dict[str, Any]:
    """A target as the core knows it; the argument is None until it first comes up."""
    if target is None:
        return {
            "up": False,
            "runs": 0,
            "overdue_ns": 0,
            "calibration": [],
            "sizes": [],
            "transfer_ns": (0, 0.0),
            "lead_ns": 0,
            "costs": {},
            "emulated": False,
        }
    spec = target.spec
    return {
        "up": target.up and bool(target.offers),
        "runs": len(target.runs),
        "overdue_ns": target.overdue_ns(now_ns),
        "calibration": [each._asdict() for each in target.calibration()],
        "sizes": [
            {
                "model": offer.model,
                "variant": offer.variant,
                "item_shapes": offer.item_shapes,
                "factors": [(step, amount(factor)) for step, factor in known],
            }
            for offer, known in target.sizes()
        ],
        "transfer_ns": (spec.transfer_ns[0], amount(spec.transfer_ns[1])),
        "lead_ns": spec.lead_ns,
        "costs": {
            "cost_per_request": spec.cost_per_request,
            "cost_per_s": spec.cost_per_s,
            "cost_per_kwh": spec.cost_per_kwh,
        },
        "emulated": any(o.runtime == "emulated" for of in target.offers.values() for o in of),
    }
