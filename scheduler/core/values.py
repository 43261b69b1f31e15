"""Immutable values that are quick to make.

A frozen dataclass sets each field through `object.__setattr__`, so that one of seven fields takes
five times as long to make as one that isn't frozen. What is made anew for every request is
therefore frozen for the type checker alone, which holds everybody who reads it to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    T = TypeVar("T")

    def value(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """`dataclass` with equality and a hash by its fields, frozen in the eyes of mypy."""
        return dataclass(slots=slots, unsafe_hash=frozen)
