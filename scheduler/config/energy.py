"""The configuration of energy costs."""

from __future__ import annotations

from scheduler.config.types import Cost, Section


class EnergyConfig(Section):
    """The cost of the energy that devices draw, where it is measured."""

    cost_per_kwh: Cost = 0.0
    """The cost of a kilowatt-hour, in the unit of the clouds' costs; 0 ignores energy. Devices
    without an energy counter cost nothing."""
