"""Remembers which requests are too large for a target, so that none like them is sent there."""

from __future__ import annotations

from typing import Any

from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import Tensors

MOST = 64
"""How many refusals are remembered; older ones are tried again."""


class RefusedSizes:
    """The models and input shapes of requests that a target refused for their size.

    Attributes:
        tensors: Models with the shapes of their inputs, as in `TargetSpec.too_large`.
    """

    def __init__(self) -> None:
        """Nothing has been refused."""
        self.tensors: tuple[Tensors, ...] = ()

    def add(self, kind: RequestClass) -> bool:
        """Records that a request of this class was refused; returns whether that is new."""
        refused = kind.model, kind.shapes
        if refused in self.tensors:
            return False
        self.tensors = (*self.tensors[1 - MOST :], refused)
        return True

    def clear(self) -> None:
        """Forgets all refusals: the target may take more than before."""
        self.tensors = ()

    def describe(self) -> list[dict[str, Any]]:
        """The refused sizes, for people and programs."""
        return [{"model": model, "shapes": shapes} for model, shapes in self.tensors]
