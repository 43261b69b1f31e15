"""What a target can run, and how long it was measured to take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field
from math import prod

from scheduler.core.requests import Shapes
from scheduler.core.values import sealed


@sealed(frozen=True, slots=True)
class Offer:
    """One variant of a model on one target, with its measured latency.

    Attributes:
        model: The model's name in the repository.
        variant: The variant's name within the model.
        runtime: The runtime there, e.g. `openvino`.
        latency_ns: Latency samples in nanoseconds, above 0, by batch size. They are equally likely:
            the measurements, or evenly spaced quantiles of them. Size 1 is always among them; a
            number of requests between two sizes takes as long as the larger.
        rank: The owner's order of preference among the model's variants, 0 first.
        accuracy: The share of right answers on held-out data, if the owner states it.
        energy_uj: The energy that a batch takes, in microjoules, 0 or more, by batch size; empty if
            not measured.
        item_shapes: The shapes of the measured items, as in `RequestClass.shapes`, with () for an
            input without free dimensions; empty if no input has any.

    Raises:
        ValueError: Batch size 1 was not measured, a batch size has no samples or impossible ones,
            or an energy is negative.
    """

    model: str
    variant: str
    runtime: str
    latency_ns: Mapping[int, tuple[int, ...]] = field(hash=False)
    rank: int = 0
    accuracy: float | None = None
    energy_uj: Mapping[int, int] = field(default_factory=dict, hash=False)
    item_shapes: Shapes = ()

    def __post_init__(self) -> None:
        """Refuses figures that can't be scheduled with."""
        what = f"offer of {self.model!r} variant {self.variant!r}"
        if 1 not in self.latency_ns:
            sizes = ", ".join(map(str, sorted(self.latency_ns))) or "none"
            raise ValueError(f"{what}: batch size 1 was not measured (measured: {sizes})")
        for size, samples in self.latency_ns.items():
            if size < 1 or not samples or min(samples) <= 0:
                raise ValueError(f"{what}: batch size {size} needs latencies above 0")
        for size, energy_uj in self.energy_uj.items():
            if size < 1 or energy_uj < 0:
                raise ValueError(f"{what}: batch size {size} takes {energy_uj} uJ, less than none")

    @property
    def max_batch(self) -> int:
        """The largest batch that was measured, and so the largest that may be sent."""
        return max(self.latency_ns)

    def size_for(self, requests: int) -> int:
        """The batch size that so many requests run as: the next measured one, if it is not less."""
        return min([size for size in self.latency_ns if size >= requests], default=requests)

    def energy(self, requests: int) -> float:
        """The energy of a batch in microjoules; 0 if not measured.

        A size that was not metered takes as much as the next larger one. Beyond the largest, energy
        is proportional to size.
        """
        metered = sorted(self.energy_uj)
        if not metered:
            return 0.0
        at = bisect_left(metered, requests)
        if at < len(metered):
            return float(self.energy_uj[metered[at]])
        return self.energy_uj[metered[-1]] * requests / metered[-1]

    def elements(self, shapes: Shapes) -> int:
        """How many elements an item with these shapes has in inputs with free dimensions.

        Without shapes, as for the requests of a simulated workload, those of the measured items
        count.
        """
        if not shapes:
            shapes = self.item_shapes
        pairs = zip(shapes, self.item_shapes, strict=False)  # a model may have been replaced
        return sum([prod(shape) for shape, own in pairs if own])
