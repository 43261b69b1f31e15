"""What a target says it can run, and how long it was measured to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Offer:
    """One variant of a model on one target, with its measured latency.

    Attributes:
        model: The model's name in the repository.
        variant: The variant's name within the model.
        runtime: What runs it there, e.g. `openvino`.
        latency_ns: Batch size to ascending latency samples in nanoseconds. Samples are
            equally likely: the sorted measurements, or evenly spaced quantiles of them.
            Batch sizes that were not measured are interpolated.
        rank: The owner's order of preference among the model's variants, 0 first.
        accuracy: The share of right answers on held-out data, where the owner states one.
    """

    model: str
    variant: str
    runtime: str
    latency_ns: Mapping[int, tuple[int, ...]] = field(hash=False)
    rank: int = 0
    accuracy: float | None = None

    @property
    def max_batch(self) -> int:
        """The largest batch that was measured, and so the largest that is sent."""
        return max(self.latency_ns)
