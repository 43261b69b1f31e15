"""Upper bounds on every policy: what a clairvoyant could have finished in time.

`fluid_bound` is for workloads of any length, `whole_bound` is closer and needs a workload that fits
into memory, `exact_bound` is for small ones. `closest_bound` chooses, and caches the result. The
functions' docstrings argue why the bounds hold, `docs/bound.md` does so at length.
"""

from replay.bound.closest import closest_bound
from replay.bound.exact import ExactBound, exact_bound
from replay.bound.fluid import FluidBound, fluid_bound
from replay.bound.model import Conditions, ServiceTimes, SharedLink
from replay.bound.whole import WholeBound, whole_bound

__all__ = [
    "Conditions",
    "ExactBound",
    "FluidBound",
    "ServiceTimes",
    "SharedLink",
    "WholeBound",
    "closest_bound",
    "exact_bound",
    "fluid_bound",
    "whole_bound",
]
