"""The common base of policies that wrap another."""

from __future__ import annotations

from scheduler.core.policy import Policy, quantile_of, quantiles_of, watches_runs


class Wrapper:
    """Relies on the quantiles of the wrapped policy, and watches runs if that does.

    Args:
        inner: The wrapped policy.
        quantile: The latency quantile to rely on, from 0 to 1, if the wrapped policy has none;
            `USUAL_QUANTILE` if not given.

    Attributes:
        inner: The wrapped policy.
        quantile: As `Policy` has it.
        quantiles: As `Policy` has it.
        watches_runs: As `Policy` has it.
    """

    def __init__(self, inner: Policy, quantile: float | None = None) -> None:
        """Takes its attributes from the wrapped policy."""
        self.inner = inner
        self.quantile = quantile_of(inner, quantile)
        self.quantiles = quantiles_of(inner, quantile)
        self.watches_runs = watches_runs(inner)
