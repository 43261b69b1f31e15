"""Immutable values: `value` where they are made often, `sealed` where they must hold.

A frozen dataclass sets each field through `object.__setattr__`, so that one of seven fields takes
five times as long to make as one that isn't frozen. What is made anew for every request is
therefore frozen for the type checker alone, which holds everybody who reads it to that. What is
made seldom, and read by policies of others, is frozen for them as well.
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
        """`dataclass` with equality and a hash by its fields, frozen in the eyes of mypy."""
        return _pickled_as_a_call(dataclass(slots=slots, unsafe_hash=frozen))

    def sealed(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """`dataclass`, frozen for everybody."""
        return _pickled_as_a_call(dataclass(frozen=frozen, slots=slots))

    def _pickled_as_a_call(made: Callable[[type[T]], type[T]]) -> Callable[[type[T]], type[T]]:
        """What mypyc has compiled can't be made without its fields, and frozen ones not be set."""

        def make(kind: type[T]) -> type[T]:
            kind.__reduce__ = _by_fields  # before, for mypyc goes on with what it gave
            return made(kind)

        return make

    def _by_fields(self: Any) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))
