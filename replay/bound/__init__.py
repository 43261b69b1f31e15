"""What a clairvoyant could have finished in time: upper bounds on every policy.

`fluid_bound` is for workloads of any length, `whole_bound` closer for those that fit into memory,
`exact_bound` for small ones; `closest_bound` chooses, and remembers. Why they hold is argued in
their docstrings and, at length, in `docs/bound.md`.
"""

from replay.bound.closest import closest_bound
from replay.bound.exact import ExactBound, exact_bound
from replay.bound.fluid import FluidBound, fluid_bound
from replay.bound.model import Conditions, ServiceTimes
from replay.bound.whole import WholeBound, whole_bound

__all__ = [
    "Conditions",
    "ExactBound",
    "FluidBound",
    "ServiceTimes",
    "WholeBound",
    "closest_bound",
    "exact_bound",
    "fluid_bound",
    "whole_bound",
]
