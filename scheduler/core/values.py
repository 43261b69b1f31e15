"""Immutable values: `value` for those created often, `sealed` for those that must stay frozen.

A frozen dataclass sets each field through `object.__setattr__`, so creating one with seven fields
takes five times as long as creating one that isn't frozen. Values created for every request are
therefore frozen for the type checker only. Values created rarely, and read by third-party policies,
are frozen at run time too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["sealed", "value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as sealed
    from dataclasses import dataclass as value
else:
    T = TypeVar("T")

    def value(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """A `dataclass` compared and hashed by its fields, frozen only for mypy."""
        return _pickled_as_a_call(dataclass(slots=slots, unsafe_hash=frozen))

    def sealed(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """A `dataclass` that is frozen at run time too."""
        return _pickled_as_a_call(dataclass(frozen=frozen, slots=slots))

    def _pickled_as_a_call(made: Callable[[type[T]], type[T]]) -> Callable[[type[T]], type[T]]:
        """Pickles by calling the class: compiled classes can't be created empty and then filled."""

        def make(kind: type[T]) -> type[T]:
            kind.__reduce__ = _by_fields  # first: mypyc keeps the class made below
            return made(kind)

        return make

    def _by_fields(self: Any) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))
