"""The energy that batches took, by what their sizes were measured to take."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.target_specs import UJ_PER_KWH, TargetSpec
from scheduler.daemon.figures import amount


class EnergyAccount:
    """What targets drew for what they ran, where that is measured.

    Args:
        cost_per_kwh: What a kilowatt-hour costs; 0 counts none.

    Attributes:
        offers: Those whose energy is measured, by target, model and variant.
    """

    def __init__(self, cost_per_kwh: float = 0.0) -> None:
        """Nothing has run."""
        self.offers: dict[tuple[str, str, str], Offer] = {}
        self._cost_per_kwh = cost_per_kwh
        self._taken_uj: dict[str, float] = {}

    def priced(self, spec: TargetSpec) -> TargetSpec:
        """The target with what its energy costs."""
        return replace(spec, cost_per_kwh=self._cost_per_kwh) if self._cost_per_kwh else spec

    def learn(self, target_id: str, offer: Offer) -> None:
        """Takes over what was measured."""
        key = target_id, offer.model, offer.variant
        if offer.energy_uj:
            self.offers[key] = offer
        else:
            self.offers.pop(key, None)

    def count(self, dispatch: Dispatch) -> None:
        """A batch is done."""
        target_id = dispatch.target_id
        offer = self.offers.get((target_id, dispatch.model, dispatch.variant))
        if offer is not None:
            energy_uj = offer.energy(len(dispatch.request_ids))
            self._taken_uj[target_id] = self._taken_uj.get(target_id, 0.0) + energy_uj

    def describe(self, target_id: str) -> dict[str, float] | None:
        """Joules and what they cost, since the start; None where energy is not measured."""
        taken_uj = self._taken_uj.get(target_id)
        if taken_uj is None:
            if not any(target == target_id for target, _, _ in self.offers):
                return None
            taken_uj = 0.0
        cost = taken_uj / UJ_PER_KWH * self._cost_per_kwh
        return {"joules": amount(taken_uj / 1e6), "cost": amount(cost)}
