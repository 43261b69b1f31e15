"""The configuration of what energy costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from scheduler.config_types import Section


class EnergyConfig(Section):
    """What the energy costs that devices draw, where it is measured."""

    cost_per_kwh: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """What a kilowatt-hour costs, in the unit of the clouds' costs; 0 counts none. Devices
    without an energy counter cost nothing."""
