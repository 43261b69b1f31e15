"""Which requests are more than a target takes, so that none like them is sent there again."""

from __future__ import annotations

from typing import Any

from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import Tensors

MOST = 64
"""What was refused before the last so many is tried again."""


class RefusedSizes:
    """The requests of which one was refused for its size, by what makes their size.

    Attributes:
        tensors: Models with the shapes of inputs, as `TargetSpec.too_large` has them.
    """

    def __init__(self) -> None:
        """Nothing was refused."""
        self.tensors: tuple[Tensors, ...] = ()

    def add(self, kind: RequestClass) -> bool:
        """A request of this class was refused; whether that is news."""
        refused = kind.model, kind.shapes
        if refused in self.tensors:
            return False
        self.tensors = (*self.tensors[1 - MOST :], refused)
        return True

    def clear(self) -> None:
        """The target may take more than before."""
        self.tensors = ()

    def describe(self) -> list[dict[str, Any]]:
        """For people and programs."""
        return [{"model": model, "shapes": shapes} for model, shapes in self.tensors]
