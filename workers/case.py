"""One variant of a model, and the tolerance and key of its trials."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from workers.agreement import tolerance_for
from workers.model import Model, Tolerance, Variant


@dataclass(frozen=True, slots=True)
class Case:
    """A variant to try runtimes on."""

    model: Model
    variant: Variant

    @property
    def label(self) -> str:
        """The name shown to people."""
        return f"{self.model.name}/{self.variant.name}"

    @property
    def tolerance(self) -> Tolerance:
        """How far outputs of different runtimes may differ."""
        return tolerance_for(self.model, self.variant)

    def key(self, max_batch: int) -> str:
        """The variant's digest plus a hash of everything else its measurement depends on.

        Args:
            max_batch: The device's own largest batch size.
        """
        conditions: dict[str, Any] = {
            "precision": self.variant.precision,
            "max_batch": min(self.model.max_batch, max_batch),
            "tolerance": asdict(self.tolerance),
            "shapes": dict(sorted(self.model.profile_shapes.items())),
            "ranges": {name: asdict(r) for name, r in sorted(self.model.shape_ranges.items())},
            "stateless": self.model.stateless,
        }
        if self.model.pad:
            conditions["pad"] = [asdict(each) for each in self.model.pad]
        text = json.dumps(conditions, sort_keys=True)
        return f"{self.variant.digest}-{xxhash.xxh3_64(text.encode()).hexdigest()}"
