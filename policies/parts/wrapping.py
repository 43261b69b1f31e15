"""What all policies have in common that wrap another one."""

from __future__ import annotations

from scheduler.core.policy import Policy, quantile_of, quantiles_of, watches_runs


class Wrapper:
    """Counts on the quantiles of the policy that is wrapped, and watches runs where that does.

    Args:
        inner: The policy that is wrapped.
        quantile: Which quantile of latency to count on, from 0 to 1, where that has none of its
            own; `USUAL_QUANTILE` if not given.

    Attributes:
        inner: The policy that is wrapped.
        quantile: As `Policy` has it.
        quantiles: As `Policy` has it.
        watches_runs: As `Policy` has it.
    """

    def __init__(self, inner: Policy, quantile: float | None = None) -> None:
        """Asks the policy that is wrapped."""
        self.inner = inner
        self.quantile = quantile_of(inner, quantile)
        self.quantiles = quantiles_of(inner, quantile)
        self.watches_runs = watches_runs(inner)
