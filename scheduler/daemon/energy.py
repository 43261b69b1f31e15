"""The energy that batches used, computed from the measured energy per batch size."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.target_specs import UJ_PER_KWH, TargetSpec
from scheduler.daemon.figures import amount


class EnergyAccount:
    """The energy that targets used for their batches, where energy is measured.

    Args:
        cost_per_kwh: Price of a kilowatt-hour; 0 means energy is free.

    Attributes:
        offers: The offers whose energy is measured, by target, model and variant.
    """

    def __init__(self, cost_per_kwh: float) -> None:
        """Nothing has run."""
        self.offers: dict[tuple[str, str, str], Offer] = {}
        self._cost_per_kwh = cost_per_kwh
        self._taken_uj: dict[str, float] = {}

    def priced(self, spec: TargetSpec) -> TargetSpec:
        """The target, with the price of energy filled in."""
        return replace(spec, cost_per_kwh=self._cost_per_kwh) if self._cost_per_kwh else spec

    def learn(self, target_id: str, offer: Offer) -> None:
        """Records the measured energy of an offer."""
        key = target_id, offer.model, offer.variant
        if offer.energy_uj:
            self.offers[key] = offer
        else:
            self.offers.pop(key, None)

    def forget(self, target_id: str) -> None:
        """Forgets a target that is removed."""
        self.offers = {key: offer for key, offer in self.offers.items() if key[0] != target_id}
        self._taken_uj.pop(target_id, None)

    def count(self, dispatch: Dispatch) -> None:
        """Adds the energy of a finished batch."""
        target_id = dispatch.target_id
        offer = self.offers.get((target_id, dispatch.model, dispatch.variant))
        if offer is not None:
            energy_uj = offer.energy(len(dispatch.request_ids))
            self._taken_uj[target_id] = self._taken_uj.get(target_id, 0.0) + energy_uj

    def describe(self, target_id: str) -> dict[str, float] | None:
        """Joules used since the start and their cost; None where energy is not measured."""
        taken_uj = self._taken_uj.get(target_id)
        if taken_uj is None:
            if not any(target == target_id for target, _, _ in self.offers):
                return None
            taken_uj = 0.0
        cost = taken_uj / UJ_PER_KWH * self._cost_per_kwh
        return {"joules": amount(taken_uj / 1e6), "cost": amount(cost)}
