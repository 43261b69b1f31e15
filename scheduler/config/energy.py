"""The configuration of what energy costs."""

from __future__ import annotations

from scheduler.config.types import Cost, Section


class EnergyConfig(Section):
    """What the energy costs that devices draw, where it is measured."""

    cost_per_kwh: Cost = 0.0
    """What a kilowatt-hour costs, in the unit of the clouds' costs; 0 counts none. Devices
    without an energy counter cost nothing."""
