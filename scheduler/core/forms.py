"""Smaller forms in which the inputs of a model may travel to a target."""

from __future__ import annotations

from scheduler.core.values import sealed


@sealed(frozen=True, slots=True)
class Form:
    """A way to make the inputs of a model smaller, which its owner allows and the target undoes.

    Attributes:
        model: Whose inputs.
        name: What is done to which of them; no other form of the model has it. Never empty.
        share: What is left of their bytes, as a share of them; above 0.
        byte_ns: How long making it here and undoing it there take together, in nanoseconds for
            each byte of the inputs as they are.

    Raises:
        ValueError: A figure is out of its range.
    """

    model: str
    name: str
    share: float
    byte_ns: float

    def __post_init__(self) -> None:
        """Refuses what would make a way take no time."""
        if not self.name or not self.share > 0 or not self.byte_ns >= 0:
            raise ValueError(f"a form has a name, a share above 0 and byte_ns from 0, not {self}")
