"""Smaller forms (compact encodings) in which a model's inputs may travel to a target."""

from __future__ import annotations

from scheduler.core.values import sealed


@sealed(frozen=True, slots=True)
class Form:
    """An encoding that makes a model's inputs smaller: allowed by its owner, undone by the target.

    Attributes:
        model: The model whose inputs it applies to.
        name: Says what is done to which inputs; unique within the model, never empty.
        share: The encoded size as a share of the original size; above 0.
        byte_ns: How long encoding here and decoding there take together, in nanoseconds per byte of
            the original inputs.

    Raises:
        ValueError: A figure is out of its range.
    """

    model: str
    name: str
    share: float
    byte_ns: float

    def __post_init__(self) -> None:
        """Refuses figures with which a transfer would take no time."""
        if not self.name or not self.share > 0 or not self.byte_ns >= 0:
            raise ValueError(f"a form has a name, a share above 0 and byte_ns from 0, not {self}")
